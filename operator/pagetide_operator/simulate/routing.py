"""`pagetide simulate --routing`: a trace through the gateway's router, over a fixed fleet.

The model: a replica prefills one request at a time, in the order of arrival, at a fixed rate; its prefix cache is an
LRU of the trace's blocks, looked up when a prefill begins and filled when it ends; then the request makes a token in
each `decode_s`. The prefill delay of a request is the time from its arrival to the end of its prefill.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from pagetide_gateway.routing.prefix_index import PrefixIndex
from pagetide_gateway.routing.routers import ExpectedTime, Figures, Prompt, RoundRobin, Router, Ticket
from pagetide_spec.traces import BLOCK_TOKENS, Row

# How often a router sees the replicas' own figures, as in the gateway.
OBSERVE_S = 2.0


@dataclasses.dataclass(frozen=True)
class Fleet:
    """The servers. `prefill_rate` in tokens per second, `decode_s` a generated token, `cache_blocks` of the trace's."""

    replicas: int = 8
    cache_blocks: int = 4000
    prefill_rate: float = 20_000.0
    decode_s: float = 0.02


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of one replay. `load_skew`: the busiest replica's prefill seconds over the mean."""

    hit_ratio: float
    prefill_delay_p50_s: float
    prefill_delay_p95_s: float
    load_skew: float


@dataclasses.dataclass(eq=False)
class _Request:
    row: Row
    ticket: Ticket


class _Server:
    """One replica of the model."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._cache = PrefixIndex(fleet.cache_blocks)
        self.queue: deque[_Request] = deque()
        self.running = 0
        self.busy_s = 0.0
        self.query_tokens = self.hit_tokens = 0

    def prefill_s(self, row: Row) -> float:
        """Begin with a prompt; returns how long it takes."""
        cached = cached_tokens(self._cache, row)
        self.query_tokens += row.prompt_tokens
        self.hit_tokens += cached
        seconds = (row.prompt_tokens - cached) / self._fleet.prefill_rate
        self.busy_s += seconds
        return seconds

    def keep(self, row: Row) -> None:
        """A prefill is over: its blocks are cached."""
        self._cache.add(row.hash_ids)

    def figures(self) -> Figures:
        """As a server's `/metrics` has them."""
        return Figures(
            query_tokens=self.query_tokens,
            hit_tokens=self.hit_tokens,
            capacity_tokens=self._fleet.cache_blocks * BLOCK_TOKENS,
            running=self.running,
            waiting=len(self.queue),
        )


def cached_tokens(cache: PrefixIndex, row: Row) -> int:
    """Tokens of the prompt that are cached; the last one is always computed, since its logits are wanted."""
    return min(cache.match(row.hash_ids) * BLOCK_TOKENS, row.prompt_tokens - 1)


class Replay:
    """One trace through one router; `run` may be called once."""

    def __init__(self, rows: Sequence[Row], fleet: Fleet, router: Router) -> None:
        self._rows, self._fleet, self._router = rows, fleet, router
        width = len(str(fleet.replicas - 1))
        self._servers = {f"r{i:0{width}}": _Server(fleet) for i in range(fleet.replicas)}
        self._names = list(self._servers)
        self._order = itertools.count()
        self._events: list[tuple[float, int, str, _Request]] = []
        self._delays: list[float] = []
        self._observe_at = 0.0

    def run(self) -> Outcome:
        """Every request of the trace, to the end of its prefill."""
        for row in self._rows:
            for at, kind, request in self._events_until(row.at):
                self._handle(at, kind, request)
            self._observe(row.at)
            self._arrive(row)
        for at, kind, request in self._events_until(math.inf):
            self._handle(at, kind, request)
        return self._outcome()

    def _events_until(self, end: float) -> Iterator[tuple[float, str, _Request]]:
        while self._events and self._events[0][0] <= end:
            at, _, kind, request = heapq.heappop(self._events)
            yield at, kind, request

    def _observe(self, now: float) -> None:
        if now >= self._observe_at:
            self._observe_at = now + OBSERVE_S
            for name, server in self._servers.items():
                self._router.observe(name, server.figures(), now)

    def _arrive(self, row: Row) -> None:
        prompt = Prompt(row.hash_ids, row.prompt_tokens, BLOCK_TOKENS)
        choice = self._router.choose(prompt, self._names, row.at)
        server = self._servers[choice.replica]
        server.queue.append(_Request(row, self._router.send(prompt, choice, row.at)))
        if len(server.queue) == 1:
            self._begin(server, row.at)

    def _begin(self, server: _Server, now: float) -> None:
        request = server.queue[0]
        self._at(now + server.prefill_s(request.row), "prefilled", request)

    def _at(self, when: float, kind: str, request: _Request) -> None:
        heapq.heappush(self._events, (when, next(self._order), kind, request))

    def _handle(self, now: float, kind: str, request: _Request) -> None:
        server = self._servers[request.ticket.replica]
        if kind == "ended":
            server.running -= 1
            self._router.end(request.ticket, now)
            return
        server.queue.popleft()
        server.running += 1
        server.keep(request.row)
        self._delays.append(now - request.row.at)
        self._router.first_token(request.ticket, now)
        self._at(now + request.row.output_tokens * self._fleet.decode_s, "ended", request)
        if server.queue:
            self._begin(server, now)

    def _outcome(self) -> Outcome:
        servers = list(self._servers.values())
        busy = [server.busy_s for server in servers]
        return Outcome(
            hit_ratio=sum(s.hit_tokens for s in servers) / sum(s.query_tokens for s in servers),
            prefill_delay_p50_s=quantile(self._delays, 0.5),
            prefill_delay_p95_s=quantile(self._delays, 0.95),
            load_skew=max(busy) * len(busy) / sum(busy),
        )


def pooled_hit_ratio(rows: Sequence[Row], blocks: int) -> float:
    """Hit ratio of one cache of so many blocks that all requests share, in the order of their arrival."""
    cache = PrefixIndex(blocks)
    hit = 0
    for row in rows:
        hit += cached_tokens(cache, row)
        cache.add(row.hash_ids)
    return hit / sum(row.prompt_tokens for row in rows)


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least `q` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def compare(rows: Sequence[Row], fleet: Fleet) -> dict[str, Any]:
    """The router's figures, and under `comparison` those of round robin and of one pooled cache of the same size."""
    routed = Replay(rows, fleet, ExpectedTime()).run()
    in_turn = Replay(rows, fleet, RoundRobin()).run()
    pooled = pooled_hit_ratio(rows, fleet.cache_blocks * fleet.replicas)
    return {
        **dataclasses.asdict(routed),
        "comparison": {
            "round_robin": dataclasses.asdict(in_turn),
            "pooled_cache": {"hit_ratio": pooled},
            "prefill_delay_p95_to_round_robin": routed.prefill_delay_p95_s / in_turn.prefill_delay_p95_s,
            "hit_ratio_to_pooled_cache": routed.hit_ratio / pooled if pooled else None,
        },
    }
