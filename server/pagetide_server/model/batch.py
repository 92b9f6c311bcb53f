"""A step as arrays and tensors: what the network and the attention ops read."""

from __future__ import annotations

import dataclasses
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from ..engine.sequence import UNKNOWN_TOKEN, Carried, Row, Sequence, Step
from .transfer import to_device


@dataclasses.dataclass(frozen=True)
class Batch:
    """The rows of a step, one behind the other; T tokens, S rows, R positions whose logits are wanted.

    input_ids, positions, slots: int64 [T]. logits_rows: int64 [R], ascending. sampling: int64, for each of
    `step.sampling()` the index into R. block_tables: int32 [S, M], zero behind a row's last block. context_lens:
    int32 [S]. query_starts: int32 [S + 1]. prompt: for each row of the step whose prompt's logits are wanted, (first,
    count) of R.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    logits_rows: torch.Tensor
    sampling: torch.Tensor
    block_tables: torch.Tensor
    context_lens: torch.Tensor
    query_starts: torch.Tensor
    max_query_len: int
    max_context_len: int
    prompt: dict[int, tuple[int, int]]


_TENSORS = (
    "input_ids", "positions", "slots", "logits_rows", "sampling", "block_tables", "context_lens", "query_starts",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class HostBatch:
    """A `Batch` in host memory, arrays in place of its tensors.

    unknown: int64 [U], places in T of tokens that the host does not know; sources: int64 [U], where the device has them
    (`Carried.token_ids`).
    """

    input_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    slots: NDArray[np.int64]
    logits_rows: NDArray[np.int64]
    sampling: NDArray[np.int64]
    block_tables: NDArray[np.int32]
    context_lens: NDArray[np.int32]
    query_starts: NDArray[np.int32]
    max_query_len: int
    max_context_len: int
    prompt: dict[int, tuple[int, int]]
    unknown: NDArray[np.int64]
    sources: NDArray[np.int64]

    @property
    def is_decode(self) -> bool:
        """Whether every row is one token whose logits are wanted once, for one sequence."""
        rows = len(self.context_lens)
        return self.max_query_len == 1 and len(self.sampling) == len(self.logits_rows) == rows and not self.prompt

    def to(self, device: torch.device, carried: Carried | None = None) -> Batch:
        """The same on `device`, in one transfer; what the host does not know is taken from `carried`."""
        arrays = [*(getattr(self, name) for name in _TENSORS), self.unknown, self.sources]
        *tensors, unknown, sources = to_device(arrays, device)
        batch = Batch(
            **dict(zip(_TENSORS, tensors, strict=True)),
            max_query_len=self.max_query_len,
            max_context_len=self.max_context_len,
            prompt=self.prompt,
        )
        fill_unknown(batch.input_ids, unknown, sources, carried)
        return batch


def fill_unknown(
    input_ids: torch.Tensor, unknown: torch.Tensor, sources: torch.Tensor, carried: Carried | None
) -> None:
    """Write the tokens at `sources` of `carried` to the places `unknown` of `input_ids`; all lie on one device."""
    if len(unknown) and carried is not None:
        input_ids.index_copy_(0, unknown, carried.token_ids.index_select(0, sources))


def host_batch(step: Step, block_size: int, carried: Carried | None = None) -> HostBatch:
    """The batch of a step with at least one row.

    Raises:
        ValueError: a row computes nothing, its sequence has too few blocks, or a token is neither known nor carried;
            each is a fault of the caller.
    """
    rows = step.rows
    starts, counts = np.array([(row.start, row.count) for row in rows]).T
    if counts.min() < 1:
        raise ValueError("a row computes no token")
    contexts = starts + counts
    query_starts = np.concatenate(([0], np.cumsum(counts)))
    tables = _block_tables(rows, -(-contexts // block_size))
    of_row = np.repeat(np.arange(len(rows)), counts)
    positions = np.arange(query_starts[-1]) - np.repeat(query_starts[:-1] - starts, counts)
    slots = tables[of_row, positions // block_size].astype(np.int64) * block_size + positions % block_size
    tokens = np.fromiter(chain.from_iterable(_tokens(row) for row in rows), np.int64, int(query_starts[-1]))
    unknown = np.flatnonzero(tokens == UNKNOWN_TOKEN)
    wanted, sampling, prompt = _wanted(rows, query_starts.tolist())
    return HostBatch(
        input_ids=tokens,
        positions=np.asarray(positions, np.int64),
        slots=slots,
        logits_rows=np.asarray(wanted, np.int64),
        sampling=np.asarray(sampling, np.int64),
        block_tables=tables,
        context_lens=np.asarray(contexts, np.int32),
        query_starts=np.asarray(query_starts, np.int32),
        max_query_len=int(counts.max()),
        max_context_len=int(contexts.max()),
        prompt=prompt,
        unknown=np.asarray(unknown, np.int64),
        sources=_sources([rows[i].sequence for i in of_row[unknown].tolist()], carried),
    )


def _sources(sequences: list[Sequence], carried: Carried | None) -> NDArray[np.int64]:
    places = {} if carried is None else carried.places
    for sequence in sequences:
        if sequence not in places:
            raise ValueError(f"the newest token of {sequence} is neither known nor carried")
    return np.array([places[s] for s in sequences], np.int64)


def _tokens(row: Row) -> list[int]:
    tokens, start = row.sequence.tokens, row.start
    if start + row.count > len(tokens):
        raise ValueError(f"row computes {row.count} tokens from {start} of a sequence of {len(tokens)}")
    return [tokens[start]] if row.count == 1 else tokens[start : start + row.count]


def _block_tables(rows: list[Row], needed: NDArray[np.int64]) -> NDArray[np.int32]:
    """[rows, most blocks needed]"""
    for row, count in zip(rows, needed.tolist(), strict=True):
        if len(row.sequence.blocks) < count:
            raise ValueError(f"sequence has {len(row.sequence.blocks)} blocks and needs {count}")
    filled = np.arange(int(needed.max())) < needed[:, None]
    tables = np.zeros(filled.shape, np.int32)
    blocks = chain.from_iterable(row.sequence.blocks[:n] for row, n in zip(rows, needed.tolist(), strict=True))
    tables[filled] = np.fromiter(blocks, np.int32, int(needed.sum()))
    return tables


def _wanted(rows: list[Row], query_starts: list[int]) -> tuple[list[int], list[int], dict[int, tuple[int, int]]]:
    """(positions whose logits are wanted, index of each sampling sequence among them, prompt part of each row)"""
    wanted: list[int] = []
    sampling: list[int] = []
    prompt: dict[int, tuple[int, int]] = {}
    for i, row in enumerate(rows):
        first, last = query_starts[i], query_starts[i + 1] - 1
        sequence = row.sequence
        # (All the tokens of a sequence that is scored are its prompt's.)
        if sequence.is_scored:
            prompt[i] = (len(wanted), row.count)
            wanted.extend(range(first, first + row.count))
        if row.samples:
            if not wanted or wanted[-1] != last:
                wanted.append(last)
            sampling.extend([len(wanted) - 1] * (1 + len(row.siblings)))
    return wanted, sampling, prompt
