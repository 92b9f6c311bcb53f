"""Which replica takes a request: a pure choice. No clock (times are arguments, in seconds), no I/O, no tokenizer.

One router serves one InferenceService. Its owner (the gateway, the local runner, `pagetide simulate`) calls, in
this order for each request:

    choice = router.choose(prompt, candidates, now)  # names of replicas that may take it; no request is counted
    ticket = router.send(prompt, choice, now)        # the request is on its way
    router.first_token(ticket, now)                  # its prefill is over; left out where nobody can see that
    router.end(ticket, now)                          # answered, failed or given up; always

and now and then `router.observe(name, figures, now)` with what the replica says about itself, and
`router.retain(names)` with the replicas that still exist, and
`router.limit(blocks)` with what it may remember of each. `Prompt.blocks` are chained hashes: equal ones mean an equal
beginning up to and including that block (`prompt.read` makes them of a request's body, a trace brings its own).

The rule of `ExpectedTime`: the least expected time to first token, which is

    (tokens queued there to be prefilled + uncached tokens of this prompt) / measured prefill rate
        + RUNNING_S a running sequence + time for a free batch slot, where none is

within a bound on the requests that one replica may have more than the others. Among near-equals a rendezvous hash
of the first block that no replica has decides, so that gateways which know nothing of each other agree; prompts too
short to have a block leave nothing to find again, and go to each in turn.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from .prefix_index import MAX_BLOCKS
from .rate import FleetRate
from .rendezvous import highest
from .replica_load import Figures, ReplicaLoad, Ticket

Reason = Literal["only", "session", "prefix", "hash", "load", "turn"]
REASONS: tuple[Reason, ...] = ("only", "session", "prefix", "hash", "load", "turn")

# What a running sequence adds to the steps that a new one has to wait for.
RUNNING_S = 0.002
# Expected times this close are equal: estimates are no better.
NEAR_S = 0.001
NEAR_RATIO = 0.02
# No replica may have more than this many times the mean number of requests (Mirrokni, Thorup, Zadimoghaddam:
# Consistent Hashing with Bounded Loads, 2018), and some for the small numbers.
LOAD_BOUND = 1.5
LOAD_SLACK = 4

__all__ = ["REASONS", "Choice", "ExpectedTime", "Figures", "Prompt", "Reason", "RoundRobin", "Router", "Ticket"]


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """What a router knows of a request.

    Attributes:
        blocks: chained hashes of the whole blocks of the prompt, from its beginning.
        tokens: estimated length of the whole prompt.
        block_tokens: estimated tokens in one block.
        session: requests of one session go to one replica.
        is_streamed: the first token will be seen; otherwise the prefill counts as done when it should be.
    """

    blocks: Sequence[int] = ()
    tokens: float = 0.0
    block_tokens: float = 1.0
    session: str | None = None
    is_streamed: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A replica, why it was taken, and what is expected of it; `cached_tokens` is the index's word, uncorrected."""

    replica: str
    reason: Reason
    cached_tokens: float = 0.0
    uncached_tokens: float = 0.0
    expected_s: float = 0.0


class Router(Protocol):
    """See the module's docstring."""

    def choose(self, prompt: Prompt, candidates: Sequence[str], now: float) -> Choice:
        """One of `candidates`, which has at least one entry."""
        ...

    def send(self, prompt: Prompt, choice: Choice, now: float) -> Ticket:
        """The request goes to the chosen replica."""
        ...

    def first_token(self, ticket: Ticket, now: float) -> None:
        """The replica has answered the first token."""
        ...

    def end(self, ticket: Ticket, now: float, *, is_whole: bool = True) -> None:
        """The replica has nothing more to do with the request; `is_whole`: it has answered it."""
        ...

    def observe(self, replica: str, figures: Figures, now: float) -> None:
        """What a replica says about itself."""
        ...

    def retain(self, replicas: Iterable[str]) -> None:
        """Forget all others."""
        ...

    def limit(self, blocks: int) -> None:
        """Remember no more than so many blocks of each replica."""
        ...


class RoundRobin:
    """Replicas in turn.

    Keeps the name of the last choice and not a counter, so that a replica that comes or goes shifts no other's turn.
    """

    def __init__(self) -> None:
        self._last = ""

    def choose(self, prompt: Prompt, candidates: Sequence[str], now: float) -> Choice:
        """The next one by name after the last one that was sent to."""
        later = [name for name in candidates if name > self._last]
        return Choice(min(later or candidates), "turn", uncached_tokens=prompt.tokens)

    def send(self, prompt: Prompt, choice: Choice, now: float) -> Ticket:
        """Remember whose turn it was."""
        self._last = choice.replica
        return Ticket(choice.replica, choice.uncached_tokens, now, prompt.is_streamed)

    def first_token(self, ticket: Ticket, now: float) -> None:
        """Changes nothing."""

    def end(self, ticket: Ticket, now: float, *, is_whole: bool = True) -> None:
        """Changes nothing."""

    def observe(self, replica: str, figures: Figures, now: float) -> None:
        """Changes nothing."""

    def retain(self, replicas: Iterable[str]) -> None:
        """Changes nothing."""

    def limit(self, blocks: int) -> None:
        """Changes nothing."""


class ExpectedTime:
    """The least expected time to first token; the module's docstring has the rule."""

    def __init__(self) -> None:
        self._loads: dict[str, ReplicaLoad] = {}
        self._fleet = FleetRate()
        # When each replica was last sent something: the number of the request.
        self._turns: dict[str, int] = {}
        self._sent = 0
        self._most_blocks = MAX_BLOCKS

    def choose(self, prompt: Prompt, candidates: Sequence[str], now: float) -> Choice:
        """The candidate where the first token is expected soonest."""
        if len(candidates) == 1:
            return self._bid(prompt, candidates[0], now, "only")
        if prompt.session is not None:
            return self._bid(prompt, highest(prompt.session.encode(), candidates), now, "session")
        bids = [self._bid(prompt, name, now, "load") for name in self._within_bound(candidates)]
        least = min(bid.expected_s for bid in bids)
        near = [bid for bid in bids if bid.expected_s <= least * (1 + NEAR_RATIO) + NEAR_S]
        most = max(bid.cached_tokens for bid in near)
        best = [bid for bid in near if bid.cached_tokens == most]
        if len(best) == 1:
            is_prefix = most > min(bid.cached_tokens for bid in bids)
            return dataclasses.replace(best[0], reason="prefix" if is_prefix else "load")
        if not prompt.blocks:
            return dataclasses.replace(min(best, key=self._turn), reason="turn")
        name = highest(_unknown(prompt, most), [bid.replica for bid in best])
        return dataclasses.replace(next(b for b in best if b.replica == name), reason="hash")

    def _turn(self, bid: Choice) -> tuple[int, str]:
        return self._turns.get(bid.replica, 0), bid.replica

    def send(self, prompt: Prompt, choice: Choice, now: float) -> Ticket:
        """Count the request in at its replica, which from now on is taken to have its blocks."""
        ticket = Ticket(choice.replica, choice.uncached_tokens, now, prompt.is_streamed)
        self._sent += 1
        self._turns[choice.replica] = self._sent
        self._load(choice.replica).add(ticket, prompt.blocks, prompt.block_tokens, choice.cached_tokens, prompt.tokens)
        return ticket

    def first_token(self, ticket: Ticket, now: float) -> None:
        """The request's prefill is over; how long it took shows the replica's rate."""
        if (load := self._loads.get(ticket.replica)) is not None:
            load.prefilled(ticket, now)

    def end(self, ticket: Ticket, now: float, *, is_whole: bool = True) -> None:
        """Count the request out."""
        if (load := self._loads.get(ticket.replica)) is not None:
            load.remove(ticket, now, is_whole=is_whole)

    def observe(self, replica: str, figures: Figures, now: float) -> None:
        """Correct what is believed of a replica by its own figures."""
        self._load(replica).observe(figures, now)

    def retain(self, replicas: Iterable[str]) -> None:
        """Forget the replicas that are gone."""
        kept = set(replicas)
        self._loads = {name: load for name, load in self._loads.items() if name in kept}
        self._turns = {name: turn for name, turn in self._turns.items() if name in kept}

    def limit(self, blocks: int) -> None:
        """Remember no more than so many blocks of each replica."""
        self._most_blocks = blocks
        for load in self._loads.values():
            load.index.limit(blocks)

    def _load(self, name: str) -> ReplicaLoad:
        load = self._loads.get(name)
        if load is None:
            load = self._loads[name] = ReplicaLoad(self._fleet)
            load.index.limit(self._most_blocks)
        return load

    def _within_bound(self, candidates: Sequence[str]) -> Sequence[str]:
        """Candidates that have not far more requests than the others; there is always at least one."""
        counts = [self._loads[name].in_flight if name in self._loads else 0 for name in candidates]
        bound = math.ceil(LOAD_BOUND * (sum(counts) + 1) / len(counts)) + LOAD_SLACK
        return [name for name, count in zip(candidates, counts, strict=True) if count < bound]

    def _bid(self, prompt: Prompt, name: str, now: float, reason: Reason) -> Choice:
        load = self._loads.get(name) or ReplicaLoad(self._fleet)
        matched = min(load.index.match(prompt.blocks) * prompt.block_tokens, prompt.tokens)
        uncached = max(1.0, prompt.tokens - matched * load.confidence)
        seconds = (
            (load.queued_tokens(now) + uncached) / load.rate.value(now)
            + load.wait_s(now)
            + RUNNING_S * load.running(now)
        )
        return Choice(name, reason, matched, uncached, seconds)


def _unknown(prompt: Prompt, cached_tokens: float) -> bytes:
    """The first block that is cached nowhere, or the last one there is."""
    at = min(len(prompt.blocks) - 1, round(cached_tokens / prompt.block_tokens))
    return (prompt.blocks[at] & (1 << 64) - 1).to_bytes(8, "little")
