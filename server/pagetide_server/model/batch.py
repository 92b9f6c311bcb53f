"""A step as arrays and tensors: what the network and the attention ops read."""

from __future__ import annotations

import dataclasses
from itertools import accumulate, chain

import numpy as np
import torch
from numpy.typing import NDArray

from ..engine.sequence import UNKNOWN_TOKEN, DeviceTokens, Row, Sequence, Step
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
    (`DeviceTokens.token_ids`).
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

    def to(self, device: torch.device, device_tokens: DeviceTokens | None = None) -> Batch:
        """The same on `device`, in one transfer; what the host does not know is taken from `device_tokens`."""
        arrays = [*(getattr(self, name) for name in _TENSORS), self.unknown, self.sources]
        *tensors, unknown, sources = to_device(arrays, device)
        batch = Batch(
            **dict(zip(_TENSORS, tensors, strict=True)),
            max_query_len=self.max_query_len,
            max_context_len=self.max_context_len,
            prompt=self.prompt,
        )
        fill_unknown(batch.input_ids, unknown, sources, device_tokens)
        return batch


def fill_unknown(
    input_ids: torch.Tensor, unknown: torch.Tensor, sources: torch.Tensor, device_tokens: DeviceTokens | None
) -> None:
    """Write the tokens at `sources` of `device_tokens` to the places `unknown` of `input_ids`, all on one device."""
    if len(unknown) and device_tokens is not None:
        input_ids.index_copy_(0, unknown, device_tokens.token_ids.index_select(0, sources))


def host_batch(step: Step, block_size: int, device_tokens: DeviceTokens | None = None) -> HostBatch:
    """The batch of a step with at least one row.

    Raises:
        ValueError: a row computes nothing, its sequence has too few blocks, or a token is neither known nor on the
            device; each is a fault of the caller.
    """
    rows = step.rows
    counts, contexts = [row.count for row in rows], [row.start + row.count for row in rows]
    if min(counts) < 1:
        raise ValueError("a row computes no token")
    query_starts = list(accumulate(counts, initial=0))
    tables = _block_tables(rows, [-(-context // block_size) for context in contexts])
    tokens = list(chain.from_iterable(map(_tokens, rows)))
    is_decode = len(tokens) == len(rows)
    positions, slots = _decode_places(rows, block_size) if is_decode else _places(rows, tables, block_size)
    # (Only the last token of a sequence can be unknown.)
    unknown = [i for i, end in enumerate(query_starts[1:]) if tokens[end - 1] == UNKNOWN_TOKEN]
    wanted, sampling, prompt = _wanted(rows, query_starts)
    return HostBatch(
        input_ids=np.array(tokens, np.int64),
        positions=positions,
        slots=slots,
        logits_rows=np.array(wanted, np.int64),
        sampling=np.array(sampling, np.int64),
        block_tables=tables,
        context_lens=np.array(contexts, np.int32),
        query_starts=np.array(query_starts, np.int32),
        max_query_len=max(counts),
        max_context_len=max(contexts),
        prompt=prompt,
        unknown=np.array([query_starts[i + 1] - 1 for i in unknown], np.int64),
        sources=_sources([rows[i].sequence for i in unknown], device_tokens),
    )


def _decode_places(rows: list[Row], size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`_places` of rows of one token, which for few rows is faster without numpy."""
    slots = [row.sequence.blocks[row.start // size] * size + row.start % size for row in rows]
    return np.array([row.start for row in rows], np.int64), np.array(slots, np.int64)


def _places(rows: list[Row], tables: NDArray[np.int32], size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(positions [T], slots [T]) of tokens in their sequences and in the cache"""
    positions = np.concatenate([np.arange(row.start, row.start + row.count) for row in rows])
    blocks = tables[np.repeat(np.arange(len(rows)), [row.count for row in rows]), positions // size]
    return positions, blocks.astype(np.int64) * size + positions % size


def _sources(sequences: list[Sequence], device_tokens: DeviceTokens | None) -> NDArray[np.int64]:
    places = {} if device_tokens is None else device_tokens.places
    for sequence in sequences:
        if sequence not in places:
            raise ValueError(f"the newest token of {sequence} is neither known nor on the device")
    return np.array([places[s] for s in sequences], np.int64)


def _tokens(row: Row) -> list[int]:
    tokens, start = row.sequence.tokens, row.start
    if start + row.count > len(tokens):
        raise ValueError(f"row computes {row.count} tokens from {start} of a sequence of {len(tokens)}")
    return [tokens[start]] if row.count == 1 else tokens[start : start + row.count]


def _block_tables(rows: list[Row], needed: list[int]) -> NDArray[np.int32]:
    """[rows, most blocks needed]"""
    width = max(needed)
    flat: list[int] = []
    for row, count in zip(rows, needed, strict=True):
        blocks = row.sequence.blocks
        if len(blocks) < count:
            raise ValueError(f"sequence has {len(blocks)} blocks and needs {count}")
        flat += blocks if len(blocks) == count else blocks[:count]
        flat += [0] * (width - count)
    return np.array(flat, np.int32).reshape(len(rows), width)


def _wanted(rows: list[Row], query_starts: list[int]) -> tuple[list[int], list[int], dict[int, tuple[int, int]]]:
    """(positions whose logits are wanted, index of each sampling sequence among them, prompt part of each row)"""
    wanted: list[int] = []
    sampling: list[int] = []
    prompt: dict[int, tuple[int, int]] = {}
    for i, row in enumerate(rows):
        first, last = query_starts[i], query_starts[i + 1] - 1
        sequence = row.sequence
        # (All the tokens of a sequence with `prompt_logprobs` are its prompt's.)
        if sequence.is_scored:
            prompt[i] = (len(wanted), row.count)
            wanted.extend(range(first, first + row.count))
        if row.samples:
            if not wanted or wanted[-1] != last:
                wanted.append(last)
            sampling.extend([len(wanted) - 1] * (1 + len(row.siblings)))
    return wanted, sampling, prompt
