"""The scheduler's view of one answer in the making, and the plan of one step. Plain data: no torch, no clock."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from ..wire.messages import AddRequest, SamplingParams

# Stands in `Sequence.tokens` for one that was sampled, but that only the device knows yet.
UNKNOWN_TOKEN = -1


class Status(enum.Enum):
    """Where a sequence stands; each lies in exactly one of the scheduler's queues.

    An answer of a request with several whose prompt is not yet computed waits with its first answer (`pending`).
    """

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


class Sequence:
    """One of the `n` answers of a request: its tokens, and the KV blocks that hold the computed ones.

    `tokens` is prompt and answer; `computed` counts the leading tokens whose keys and values lie in `blocks`. A running
    sequence has `len(blocks) * block_size >= computed`. After a preemption by recompute `computed` is 0 again, and the
    answer so far is recomputed like a prompt; nothing is sampled twice.

    Attributes:
        order: importance; the smallest goes first and is preempted last.
        limit: `len(tokens)` at which the sequence ends, from `max_tokens` and the model's context length.
        min_length: `len(tokens)` up to which no token ends it, from `min_tokens`.
        end_ids: tokens that end it.
        keys: prefix-cache keys of its leading full blocks, as far as they were needed.
        registered: leading blocks that were offered to the prefix cache since the sequence got its blocks.
        pending: the request's other answers, which join when this one's prompt is computed.
        cached_tokens: prompt tokens that the prefix cache saved when the request started.
    """

    __slots__ = (
        "arrival_order",
        "blocks",
        "cached_tokens",
        "computed",
        "end_ids",
        "host_blocks",
        "index",
        "keys",
        "limit",
        "matcher",
        "min_length",
        "order",
        "pending",
        "priority",
        "prompt_len",
        "registered",
        "request",
        "status",
        "tokens",
    )

    def __init__(self, request: AddRequest, arrival_order: int, index: int = 0) -> None:
        self.request = request
        self.arrival_order = arrival_order
        self.index = index
        self.priority = request.priority
        self.order = (0, arrival_order, index)
        self.tokens: list[int] = list(request.prompt_token_ids)
        self.prompt_len = len(self.tokens)
        self.limit = self.prompt_len
        self.min_length = self.prompt_len + request.params.min_tokens
        self.end_ids: frozenset[int] = frozenset()
        self.computed = 0
        self.cached_tokens = 0
        self.blocks: list[int] = []
        self.host_blocks: list[int] = []
        self.keys: list[bytes] = []
        self.registered = 0
        self.pending: list[Sequence] = []
        self.status = Status.WAITING
        # State of the structured answer (sampling/matcher.py), if one was asked for; the scheduler does not look at it.
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

    @property
    def is_scored(self) -> bool:
        """Whether its prompt's own log probabilities are wanted and not all known yet."""
        return self.request.params.prompt_logprobs is not None and len(self.tokens) == self.prompt_len

    @property
    def ends_with_unknown(self) -> bool:
        """Whether its last token was sampled and is on its way."""
        return len(self.tokens) >= self.limit and self.tokens[-1] == UNKNOWN_TOKEN

    @property
    def slots(self) -> int:
        """Batch slots that it takes: its own, and those kept for answers yet to join."""
        return 1 + len(self.pending)

    def __repr__(self) -> str:
        return f"<{self.request_id}[{self.index}] {self.status.value} {self.computed}/{len(self.tokens)}>"


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

    Block pairs are (from, to): `swap_out` from device to host, `swap_in` from host to device, `copies` within the
    device. No block is the target of two pairs of a list. A block may be the source of one copy and the target of
    another; the source's old content is meant, and never the result of a copy of the same step.

    Attributes:
        started: leading sequences of requests that were never scheduled before this step.
        preempted: sequences that were preempted in this step.
        resumed: sequences whose blocks are swapped in; those with a row, too.
    """

    rows: list[Row] = dataclasses.field(default_factory=list)
    swap_out: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    swap_in: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    copies: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    started: list[Sequence] = dataclasses.field(default_factory=list)
    preempted: list[Sequence] = dataclasses.field(default_factory=list)
    resumed: list[Sequence] = dataclasses.field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(row.count for row in self.rows)

    def touched(self) -> list[Sequence]:
        """The sequences whose keys and values are lost if the step is not executed to its end; some may come twice.

        A sequence preempted for recomputation has lost nothing.
        """
        moved = [s for s in self.preempted if s.status is Status.SWAPPED]
        return [s for row in self.rows for s in (row.sequence, *row.siblings)] + self.resumed + moved

    def sampling(self) -> list[Sequence]:
        """The sequences that get a token in this step, in row order, each row's siblings behind it."""
        return [s for row in self.rows if row.samples for s in (row.sequence, *row.siblings)]


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceTokens:
    """Tokens of a step that only the device knows yet, for the step behind it.

    token_ids: int64 [sequences], a tensor on the device. places: where in it each sequence's newest token lies.
    """

    token_ids: Any
    places: Mapping[Sequence, int]
