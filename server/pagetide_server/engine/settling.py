"""Settling a step: sampled tokens are appended, computed blocks offered to the cache, ended sequences found."""

from __future__ import annotations

import dataclasses
from collections import abc

from ..wire.messages import FinishReason
from .sequence import UNKNOWN_TOKEN, Row, Sequence, Status, Step
from .tables import BlockTables


@dataclasses.dataclass(slots=True)
class Settled:
    """What a step brought for one sequence.

    Attributes:
        token_id: its new token; None for a prompt that only got log probabilities (`max_tokens` 0).
        finish_reason: why it ended, or None if it goes on.
        stop_token_id: the token that ended it, for reason `stop`.
    """

    sequence: Sequence
    token_id: int | None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None


def advance(step: Step, tables: BlockTables) -> None:
    """Count a step as computed whose tokens are on their way; see `Scheduler.advance`."""
    for row in step.rows:
        for sequence in (row.sequence, *row.siblings):
            if sequence.status is Status.RUNNING:
                sequence.computed = row.start + row.count
                tables.register(sequence)
                if row.samples:
                    sequence.tokens.append(UNKNOWN_TOKEN)


def apply(step: Step, token_ids: abc.Sequence[int], tables: BlockTables) -> list[Settled]:
    """Write the results of an executed step into its sequences; see `Scheduler.settle`.

    Sequences that were aborted since the step was planned are left out. Ended ones still hold their blocks.
    """
    settled: list[Settled] = []
    size = tables.config.block_size
    at = 0
    for row in step.rows:
        if not row.samples:
            _count_piece(row, tables, settled)
            continue
        for sequence in (row.sequence, *row.siblings) if row.siblings else (row.sequence,):
            token_id = token_ids[at]
            at += 1
            if sequence.status is not Status.RUNNING:
                continue
            if sequence.tokens[-1] == UNKNOWN_TOKEN:
                sequence.tokens[-1] = token_id
                settled.append(_judged(sequence, token_id))
                continue
            sequence.computed = computed = row.start + row.count
            sequence.tokens.append(token_id)
            if computed // size > sequence.registered:
                tables.register(sequence)
            settled.append(_judged(sequence, token_id))
    return settled


def _judged(sequence: Sequence, token_id: int) -> Settled:
    length = len(sequence.tokens)
    if token_id in sequence.end_ids and length > sequence.min_length:
        return Settled(sequence, token_id, "stop", token_id)
    return Settled(sequence, token_id, "length" if length >= sequence.limit else None)


def _count_piece(row: Row, tables: BlockTables, settled: list[Settled]) -> None:
    """A piece of a prompt was computed; nothing was sampled."""
    sequence = row.sequence
    if sequence.status is not Status.RUNNING:
        return
    sequence.computed = row.start + row.count
    tables.register(sequence)
    if sequence.computed == sequence.limit:
        settled += [Settled(answer, None, "length") for answer in (sequence, *sequence.pending)]
