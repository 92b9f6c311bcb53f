"""What one replica has to do, as seen from outside: its queue of prefills, its speed, its cache. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from .prefix_index import PrefixIndex
from .rate import FleetRate, PrefillRate

_SECONDS_FADE = 0.9
# Of the mean of tokens in a block, with each prompt.
_BLOCK_FADE = 0.98
# Prefills of fewer tokens take as long as a step takes, whatever their length.
_LEAST_SAMPLE = 64
# Figures older than this say nothing.
STALE_S = 15.0
# Between two scrapes of the counters, so many prompt tokens at least make a sample.
_LEAST_QUERY = 256
_CONFIDENCE_STEP = 0.3


@dataclasses.dataclass(eq=False, slots=True)
class Ticket:
    """One request at a replica. `work`: tokens to prefill."""

    replica: str
    work: float
    sent: float
    is_streamed: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """What a replica says about itself on `/metrics`; None where it does not say."""

    query_tokens: float | None = None
    hit_tokens: float | None = None
    capacity_tokens: float | None = None
    running: float | None = None
    waiting: float | None = None
    max_running: float | None = None
    generated_tokens: float | None = None
    kv_used_ratio: float | None = None


class ReplicaLoad:
    """Everything a router believes of one replica."""

    def __init__(self, fleet: FleetRate) -> None:
        self.index = PrefixIndex()
        self.rate = PrefillRate(fleet)
        # How much of what the index expects is really found there, 0 to 1.
        self.confidence = 1.0
        self._tickets: set[Ticket] = set()
        self._prefills: dict[Ticket, None] = {}
        self._queued = 0.0
        self._since = -math.inf
        self._answer_s = 1.0
        self._figures: Figures | None = None
        self._figures_at = -math.inf
        self._others = 0.0
        self._sent_tokens = self._expected_tokens = 0.0
        self._block_tokens = 0.0
        # The replica's counters at the last sample; before the first one they are of times before this gateway.
        self._counted, self._is_counting = (0.0, 0.0), False

    @property
    def in_flight(self) -> int:
        """Requests that this gateway has there."""
        return len(self._tickets)

    def running(self, now: float) -> float:
        """Requests there, those of other gateways included where the replica's figures are fresh."""
        return self.in_flight + (self._others if now - self._figures_at < STALE_S else 0.0)

    def wait_s(self, now: float) -> float:
        """Seconds until a batch slot is free, where more requests are there than may run."""
        most = self._figures.max_running if self._figures is not None else None
        if not most:
            return 0.0
        excess = self.running(now) + 1 - most
        return max(0.0, excess) * self._answer_s / most

    def queued_tokens(self, now: float) -> float:
        """Tokens to be prefilled before a request that comes now; prefills that must be over leave the queue."""
        self._advance(now)
        if not self._prefills:
            return 0.0
        head = next(iter(self._prefills))
        done = min(head.work, max(0.0, now - self._since) * self.rate.value(now))
        return max(0.0, self._queued - done)

    def add(
        self, ticket: Ticket, blocks: Sequence[int], block_tokens: float, cached_tokens: float, tokens: float
    ) -> None:
        """A request was sent."""
        self._advance(ticket.sent)
        if not self._prefills:
            self._since = ticket.sent
        self._tickets.add(ticket)
        self._prefills[ticket] = None
        self._queued += ticket.work
        self._sent_tokens += tokens
        self._expected_tokens += cached_tokens
        if blocks:
            fade = _BLOCK_FADE if self._block_tokens else 0.0
            self._block_tokens = self._block_tokens * fade + block_tokens * (1 - fade)
        self.index.add(blocks)

    def prefilled(self, ticket: Ticket, now: float) -> None:
        """Its first token came."""
        if ticket not in self._prefills:
            return
        self._advance(now)
        if ticket.work >= _LEAST_SAMPLE:
            self.rate.add(ticket.work, now - max(self._since, ticket.sent), now)
        self._leave_queue(ticket, now)

    def remove(self, ticket: Ticket, now: float, *, is_whole: bool = True) -> None:
        """It is answered; or, not `is_whole`, refused or given up, which says nothing of how long answers take."""
        if ticket not in self._tickets:
            return
        self._tickets.discard(ticket)
        self._leave_queue(ticket, now)
        if is_whole:
            self._answer_s = self._answer_s * _SECONDS_FADE + (now - ticket.sent) * (1 - _SECONDS_FADE)

    def observe(self, figures: Figures, now: float) -> None:
        """Take over what the replica says."""
        self._figures, self._figures_at = figures, now
        self._others = max(0.0, (figures.running or 0.0) + (figures.waiting or 0.0) - self.in_flight)
        self._resize()
        if figures.query_tokens is not None and figures.hit_tokens is not None:
            self._correct(figures.query_tokens, figures.hit_tokens)

    def _correct(self, query_tokens: float, hit_tokens: float) -> None:
        """Compare the hits that were expected since the last sample with those that the replica counts."""
        queried, hit = query_tokens - self._counted[0], hit_tokens - self._counted[1]
        if queried < 0:  # it has begun again, with nothing cached
            self.index.clear()
        elif queried < _LEAST_QUERY:
            return  # the sample goes on growing
        elif self._is_counting and self._expected_tokens > 0.05 * self._sent_tokens:
            found = (hit / queried) / (self._expected_tokens / self._sent_tokens)
            self.confidence += _CONFIDENCE_STEP * (min(1.0, max(0.0, found)) - self.confidence)
        self._is_counting, self._counted = True, (query_tokens, hit_tokens)
        self._sent_tokens = self._expected_tokens = 0.0

    def _resize(self) -> None:
        tokens = self._figures.capacity_tokens if self._figures is not None else None
        if tokens and self._block_tokens:
            self.index.resize(int(tokens / self._block_tokens))

    def _advance(self, now: float) -> None:
        """Prefills whose end nobody sees are over when they should be."""
        while self._prefills:
            head = next(iter(self._prefills))
            end = self._since + head.work / self.rate.value(now)
            if head.is_streamed or end > now:
                return
            self._leave_queue(head, end)

    def _leave_queue(self, ticket: Ticket, now: float) -> None:
        if ticket not in self._prefills:
            return
        del self._prefills[ticket]
        self._queued -= ticket.work
        self._since = max(self._since, now)
        if not self._prefills:
            self._queued = 0.0
