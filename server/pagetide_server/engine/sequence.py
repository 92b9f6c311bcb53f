"""The scheduler's view of one answer in the making, and the plan of one step. Plain data: no torch, no clock."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from .messages import AddRequest, SamplingParams


class Status(enum.Enum):
    """Where a sequence stands; each lies in exactly one of the scheduler's queues."""

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


class Sequence:
    """One of the `n` answers of a request: its tokens, and the KV blocks that hold the computed ones.

    `tokens` is prompt and answer; `computed` counts the leading tokens whose keys and values lie in `blocks`. A running
    sequence has `len(blocks) * block_size >= computed`. After a preemption by recompute `computed` is 0 again, and the
    answer so far is computed anew like a prompt; nothing is sampled twice.
    """

    __slots__ = (
        "arrival_order",
        "blocks",
        "cached_tokens",
        "computed",
        "host_blocks",
        "index",
        "matcher",
        "priority",
        "prompt_len",
        "request",
        "status",
        "tokens",
    )

    def __init__(self, request: AddRequest, arrival_order: int, index: int = 0) -> None:
        self.request = request
        self.arrival_order = arrival_order
        self.index = index
        self.priority = request.priority
        self.tokens: list[int] = list(request.prompt_token_ids)
        self.prompt_len = len(self.tokens)
        self.computed = 0
        self.cached_tokens = 0
        self.blocks: list[int] = []
        self.host_blocks: list[int] = []
        self.status = Status.WAITING
        # State of the structured answer (structure.py), if one was asked for; the scheduler does not look at it.
        self.matcher: Any = None

    @property
    def request_id(self) -> str:
        """Id of the request that this sequence answers."""
        return self.request.request_id

    @property
    def params(self) -> SamplingParams:
        """Sampling parameters of the request."""
        return self.request.params

    @property
    def generated(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - self.prompt_len


@dataclasses.dataclass(slots=True)
class Row:
    """One sequence's part in a step: compute `tokens[start : start + count]`.

    `samples`: the last of them is the newest token, so that the next one is to be sampled. For a request of several
    answers whose prompt ends here, `siblings` are the other sequences that sample from the same logits.
    """

    sequence: Sequence
    start: int
    count: int
    samples: bool
    siblings: tuple[Sequence, ...] = ()


@dataclasses.dataclass(slots=True)
class Step:
    """What to do now, in this order: swap out, swap in, copy blocks, compute the rows (decodes first), sample.

    Block pairs are (from, to). Within one step no block is both source of one list and target of a later one unless
    that order is meant.
    """

    rows: list[Row] = dataclasses.field(default_factory=list)
    swap_out: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    swap_in: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    copies: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(row.count for row in self.rows)

    def __bool__(self) -> bool:
        return bool(self.rows)

    def sampling(self) -> list[Sequence]:
        """The sequences that get a token in this step, in row order, each row's siblings behind it."""
        return [s for row in self.rows if row.samples for s in (row.sequence, *row.siblings)]
