"""Replay the forward pass of a decode step, recorded once for each of a few batch sizes.

A small model's decode step is hundreds of short launches, which take the host longer to issue than the GPU to run. A
CUDA graph issues them as one. It repeats what was recorded, to the address: its inputs lie in fixed buffers, and a
batch is padded to the next recorded size by repeats of its first row, which compute and store the same once more.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from .batch import Batch

Forward = Callable[[Batch], torch.Tensor]
Replay = Callable[[], None]
# Of a batch, what has one entry a row.
_ROWS = ("input_ids", "positions", "slots", "context_lens")


@dataclasses.dataclass(frozen=True)
class _Recorded:
    """One size: replay writes `logits` [size, vocab] from what `batch` holds."""

    batch: Batch
    logits: torch.Tensor
    replay: Replay


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes to record, ascending: few padded rows where rows are few, and not too many graphs."""
    sizes = {1, 2, 4, *range(8, min(max_num_seqs, 64), 8), *range(64, max_num_seqs, 16), max_num_seqs}
    return sorted(size for size in sizes if size <= max_num_seqs)


class DecodeGraphs:
    """Decode steps of at most `max_num_seqs` sequences, recorded at construction.

    Recording runs the forward pass on sequences of one token in block 0, so no block may be in use yet.
    """

    def __init__(
        self, forward: Forward, max_num_seqs: int, max_model_len: int, block_size: int, device: torch.device
    ) -> None:
        """Record all sizes, the largest first: the smaller ones then reuse its memory.

        Args:
            forward: a batch to logits [rows, vocab]; must not wait for the device.
            max_num_seqs, max_model_len, block_size: the engine's.
            device: on `cuda` a CUDA graph is recorded; elsewhere `forward` is called anew on the same buffers.
        """
        self._forward, self._max_model_len = forward, max_model_len
        self._pool: Any = None
        blocks = -(-max_model_len // block_size)
        self._buffers = _empty_batch(max_num_seqs, blocks, max_model_len, device)
        self._record = self._record_graph if device.type == "cuda" else self._record_call
        self._recorded = {size: self._record(size) for size in reversed(graph_sizes(max_num_seqs))}
        self._sizes = sorted(self._recorded)

    def fits(self, batch: Batch) -> bool:
        """Whether `run` can compute the batch: decodes only, each wanted, and not more than were recorded."""
        rows = len(batch.context_lens)
        return batch.max_query_len == 1 and len(batch.logits_rows) == rows <= self._sizes[-1] and not batch.prompt

    def run(self, batch: Batch) -> torch.Tensor:
        """Logits [rows, vocab] of a batch that fits. They are overwritten by the next run."""
        rows = len(batch.context_lens)
        recorded = self._recorded[self._sizes[bisect.bisect_left(self._sizes, rows)]]
        for name in _ROWS:
            _fill(getattr(recorded.batch, name), getattr(batch, name))
        width = batch.block_tables.shape[1]
        # What lies behind a context's last block is not read, so older entries may stay there.
        _fill(recorded.batch.block_tables[:, :width], batch.block_tables)
        recorded.replay()
        return recorded.logits[:rows]

    def _record_call(self, size: int) -> _Recorded:
        batch = _first_rows(self._buffers, size)
        logits = self._forward(batch)

        def replay() -> None:
            logits.copy_(self._forward(batch))

        return _Recorded(batch, logits, replay)

    def _record_graph(self, size: int) -> _Recorded:
        batch = _first_rows(self._buffers, size)
        # Kernels are compiled and libraries choose theirs on a side stream, before anything is recorded.
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._forward(batch)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits = self._forward(batch)
        self._pool = graph.pool()
        return _Recorded(batch, logits, graph.replay)


def _empty_batch(rows: int, blocks: int, max_model_len: int, device: torch.device) -> Batch:
    """Buffers for `rows` decodes: for now of sequences of one token in block 0."""

    def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.zeros(*shape, dtype=dtype, device=device)

    return Batch(
        input_ids=zeros(rows),
        positions=zeros(rows),
        slots=zeros(rows),
        block_tables=zeros(rows, blocks, dtype=torch.int32),
        context_lens=zeros(rows, dtype=torch.int32) + 1,
        query_starts=torch.arange(rows + 1, dtype=torch.int32, device=device),
        max_query_len=1,
        # The grid of a graph cannot grow; parts behind a row's context end at once.
        max_context_len=max_model_len,
        logits_rows=torch.arange(rows, device=device),
        sampling=torch.arange(rows, device=device),
        prompt={},
    )


def _first_rows(batch: Batch, rows: int) -> Batch:
    """The same buffers, the first rows only."""
    names = (*_ROWS, "block_tables", "logits_rows", "sampling")
    changes = {name: getattr(batch, name)[:rows] for name in names}
    return dataclasses.replace(batch, **changes, query_starts=batch.query_starts[: rows + 1])


def _fill(buffer: torch.Tensor, values: torch.Tensor) -> None:
    """Write `values`, and its first row into the rows that are left."""
    buffer[: len(values)] = values
    if len(values) < len(buffer):
        buffer[len(values) :] = values[0]
