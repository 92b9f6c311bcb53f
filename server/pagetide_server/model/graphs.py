"""Replay the forward pass of a decode step, captured once for each of a few batch sizes.

A small model's decode step is hundreds of short launches, which take the host longer to issue than the GPU to run. A
CUDA graph issues them as one. It repeats what was captured, to the address: its inputs lie in fixed buffers, and a
batch is padded to the next captured size by rows of one token that belong to no sequence, in a block that no sequence
has.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..engine.sequence import DeviceTokens
from .batch import Batch, HostBatch, fill_unknown
from .transfer import pack, to_device, unpack

Work = Callable[[], None]
# Makes a replay of some work: CUDA graphs for a GPU; whatever repeats it serves.
Recorder = Callable[[Work], Work]
# A batch to logits [rows, vocab] of any float type; must not wait for the device.
Forward = Callable[[Batch], torch.Tensor]

# Up to these contexts a size has graphs of its own: one for the whole context launches parts of the attention for all
# of it, most of which find that their row ends earlier.
CONTEXTS = (4096, 32_768)
# Of a batch, what has one entry a row, beside the block tables.
_ROWS = ("input_ids", "positions", "slots", "context_lens")


@dataclasses.dataclass(frozen=True)
class GraphLimits:
    """What batches to capture for, and the block of the KV cache that the scheduler does not know (`idle_block`)."""

    max_num_seqs: int
    max_model_len: int
    block_size: int
    idle_block: int
    vocab_size: int


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes to capture, ascending: few padded rows where rows are few, and not too many graphs."""
    sizes = {1, 2, 4, *range(8, min(max_num_seqs, 64), 8), *range(64, max_num_seqs, 16), max_num_seqs}
    return sorted(size for size in sizes if size <= max_num_seqs)


def graph_contexts(max_model_len: int) -> list[int]:
    """Longest contexts to capture each size for, ascending; none that is hardly shorter than the whole context."""
    shorter = [context for context in CONTEXTS if 2 * context <= max_model_len]
    return [*shorter, max_model_len]


class CudaRecorder:
    """Captures work on a GPU as CUDA graphs, all in one pool of memory."""

    def __init__(self) -> None:
        self._pool: Any = None
        # One for all, since torch keeps the memory that is freed on a stream for that stream.
        self._side: Any = None

    def __call__(self, work: Work) -> Work:
        """The graph of `work`.

        Raises:
            RuntimeError: `work` waits for the device.
        """
        # Kernels are compiled and libraries choose theirs on a side stream, before anything is captured.
        side = self._side = self._side or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()
            if self._pool is None:
                _check_never_waits(work)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            work()
        self._pool = graph.pool()
        return graph.replay


def _check_never_waits(work: Work) -> None:
    """Find a wait before a capture does, for a broken capture leaves the device in an odd state."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        work()
    finally:
        torch.cuda.set_sync_debug_mode(before)


@dataclasses.dataclass(frozen=True)
class _Recorded:
    """One size and longest context: `replay` computes what `batch` holds; its rows lie packed in `held`."""

    batch: Batch
    held: torch.Tensor
    replay: Work


class DecodeGraphs:
    """Decode steps of at most `limits.max_num_seqs` sequences, captured at construction.

    Capturing runs the forward pass on sequences of one token in the idle block.
    """

    @torch.inference_mode()
    def __init__(
        self,
        forward: Forward,
        limits: GraphLimits,
        device: torch.device,
        record: Recorder,
        progress: Callable[[float], None] = lambda fraction: None,
        sizes: Sequence[int] | None = None,
    ) -> None:
        """Capture all sizes, the largest first: the smaller ones then reuse its memory.

        Args:
            forward: what is captured.
            limits: the engine's.
            device: where it runs.
            record: a `CudaRecorder`, or what stands in for it elsewhere.
            progress: called with the part that is done after each capture.
            sizes: batch sizes to capture, ascending; None: `graph_sizes`.
        """
        self._forward, self._limits, self._device = forward, limits, device
        self._sizes = list(sizes or graph_sizes(limits.max_num_seqs))
        self._contexts = graph_contexts(limits.max_model_len)
        most, blocks = self._sizes[-1], -(-limits.max_model_len // limits.block_size)
        self._logits = torch.empty(most, limits.vocab_size, device=device)
        self._tables = torch.full((most, blocks), limits.idle_block, dtype=torch.int32, device=device)
        packed, _ = pack(self._idle_rows(most), pinned=False)
        self._held = torch.empty_like(packed, device=device)
        todo = [(size, context) for size in reversed(self._sizes) for context in reversed(self._contexts)]
        self._recorded: dict[tuple[int, int], _Recorded] = {}
        for done, key in enumerate(todo, 1):
            self._recorded[key] = self._record(*key, record)
            progress(done / len(todo))

    def fits(self, batch: HostBatch) -> bool:
        """Whether `run` can compute the batch: decodes only, each wanted, and not more than were captured."""
        return batch.is_decode and len(batch.context_lens) <= self._sizes[-1]

    @torch.inference_mode()
    def run(self, batch: HostBatch, device_tokens: DeviceTokens | None = None) -> torch.Tensor:
        """float32 logits [rows, vocab] of a batch that fits. They are overwritten by the next run.

        `device_tokens` has the tokens that the batch does not know.
        """
        rows = len(batch.context_lens)
        size = self._sizes[bisect.bisect_left(self._sizes, rows)]
        context = self._contexts[bisect.bisect_left(self._contexts, batch.max_context_len)]
        recorded = self._recorded[size, context]
        self._fill(recorded, batch, device_tokens)
        recorded.replay()
        return self._logits[:rows]

    def _fill(self, recorded: _Recorded, batch: HostBatch, device_tokens: DeviceTokens | None) -> None:
        """Write the batch, padded, into the buffers that the graph reads. Waits for nothing."""
        rows, size = len(batch.context_lens), len(recorded.batch.context_lens)
        padded = self._idle_rows(size)
        for array, name in zip(padded, _ROWS, strict=True):
            array[:rows] = getattr(batch, name)
        packed, _ = pack(padded, pinned=self._device.type == "cuda")
        recorded.held.copy_(packed, non_blocking=True)
        # What lies behind a context's last block is not read, so older entries may stay there.
        width = batch.block_tables.shape[1]
        table = np.full((size, width), self._limits.idle_block, np.int32)
        table[:rows] = batch.block_tables
        new, unknown, sources = to_device([table, batch.unknown, batch.sources], self._device)
        recorded.batch.block_tables[:, :width].copy_(new)
        fill_unknown(recorded.batch.input_ids, unknown, sources, device_tokens)

    def _idle_rows(self, size: int) -> list[np.ndarray]:
        """`_ROWS` of sequences of one token, all at the beginning of the idle block."""
        zeros = np.zeros(size, np.int64)
        slots = zeros + self._limits.idle_block * self._limits.block_size
        return [zeros, zeros.copy(), slots, np.ones(size, np.int32)]

    def _record(self, size: int, context: int, record: Recorder) -> _Recorded:
        idle = self._idle_rows(size)
        packed, places = pack(idle, pinned=False)
        held = self._held[: len(packed)]
        held.copy_(packed)
        rows = torch.arange(size + 1, device=self._device)
        batch = Batch(
            **dict(zip(_ROWS, unpack(held, idle, places), strict=True)),
            block_tables=self._tables[:size],
            query_starts=rows.int(),
            max_query_len=1,
            # The grid of a graph cannot grow.
            max_context_len=context,
            logits_rows=rows[:-1],
            sampling=rows[:-1],
            prompt={},
        )
        logits = self._logits[:size]

        def work() -> None:
            # Into memory of our own: what a graph returns would take its part of the pool for ever.
            logits.copy_(self._forward(batch))

        return _Recorded(batch, held, record(work))
