"""A step as tensors: what the network and the attention ops read."""

from __future__ import annotations

import dataclasses
from itertools import chain

import numpy as np
import torch

from ..engine.sequence import Row, Step
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


def make_batch(step: Step, block_size: int, device: torch.device) -> Batch:
    """The batch of a step with at least one row.

    Raises:
        ValueError: a row computes nothing, or its sequence has too few blocks; either is a fault of the scheduler.
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
    wanted, sampling, prompt = _wanted(rows, query_starts.tolist())
    longs = [np.asarray(values, np.int64) for values in (tokens, positions, slots, wanted, sampling)]
    ints = [np.asarray(values, np.int32) for values in (tables, contexts, query_starts)]
    ids, at, into, rows_wanted, sampled, table, ends, begins = to_device([*longs, *ints], device)
    longest = int(counts.max()), int(contexts.max())
    return Batch(ids, at, into, rows_wanted, sampled, table, ends, begins, *longest, prompt)


def _tokens(row: Row) -> list[int]:
    tokens, start = row.sequence.tokens, row.start
    if start + row.count > len(tokens):
        raise ValueError(f"row computes {row.count} tokens from {start} of a sequence of {len(tokens)}")
    return [tokens[start]] if row.count == 1 else tokens[start : start + row.count]


def _block_tables(rows: list[Row], needed: np.ndarray) -> np.ndarray:
    """int32 [rows, most blocks needed]"""
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
