"""The model of one server: continuous batching with chunked prefill, step by step.

A step takes `step_s`, and `sequence_s` for each sequence that decodes, and 1 / `prefill_rate` for each token of a
prompt. Each decoding sequence makes one token a step; prompts share what is left of `batched_tokens`. Requests join in
the order of arrival while there is some of that left, a batch slot, and room for all their tokens in the KV
cache, so that nothing is ever preempted. Blocks of prompts stay cached; least recently used ones go first. Steps in
which nothing joins or leaves are taken at once.
"""

from __future__ import annotations

import bisect
import dataclasses
import heapq
import itertools
import math
from collections import deque

from pagetide_gateway.routing.prefix_index import PrefixIndex
from pagetide_gateway.routing.routers import Figures, Ticket
from pagetide_spec.metrics import LATENCY_BUCKETS
from pagetide_spec.traces import BLOCK_TOKENS, Row

from ..autoscaling.samples import Sample
from .routing import cached_tokens


@dataclasses.dataclass(frozen=True)
class ServerModel:
    """How fast a server is, and how much it holds. Seconds, tokens.

    Attributes:
        startup_s: from the wish for a replica to its first answer.
    """

    prefill_rate: float = 20_000.0
    step_s: float = 0.02
    sequence_s: float = 0.0001
    max_seqs: int = 256
    kv_tokens: int = 400_000
    batched_tokens: int = 8192
    startup_s: float = 60.0


@dataclasses.dataclass(eq=False, slots=True)
class Job:
    """One request on its way. `left`: prompt tokens still to be computed; times are of the replay's clock.

    `arrived`: at the gateway; `queued`: at the server.
    """

    row: Row
    arrived: float
    queued: float = 0.0
    left: int = 0
    first: float = 0.0
    ended: float = 0.0
    replica: str = ""
    ticket: Ticket | None = None


def _size(job: Job) -> int:
    """Tokens of KV cache that a job needs in the end."""
    return job.row.prompt_tokens + job.row.output_tokens


class Server:
    """One replica. The replay calls `advance` whenever `due` has come, and before it hands over a job."""

    def __init__(self, name: str, model: ServerModel) -> None:
        self.name, self._model = name, model
        self.due = math.inf
        self.waiting: deque[Job] = deque()
        self._prefilling: deque[Job] = deque()
        self._decoding: list[tuple[int, int, Job]] = []
        self._order = itertools.count()
        self._steps, self._step_end, self._chunks = 0, math.inf, list[tuple[Job, int]]()
        self._run, self._run_begin, self._run_s = 0, 0.0, 0.0
        self._room = model.kv_tokens
        self._cache = PrefixIndex(max(1, model.kv_tokens // BLOCK_TOKENS))
        self._queue = [0] * (len(LATENCY_BUCKETS) + 1)
        self.prompt_tokens = self.hit_tokens = self.prefills = 0

    @property
    def in_flight(self) -> int:
        """Jobs that it has."""
        return len(self.waiting) + self.running

    @property
    def running(self) -> int:
        """Jobs in the batch."""
        return len(self._prefilling) + len(self._decoding)

    def add(self, job: Job, now: float) -> None:
        """Take a job; decode steps that were to be taken at once end with the one under way."""
        job.queued = now
        self.waiting.append(job)
        if self.due == math.inf:
            self._begin(now)
        elif self._run > 1:
            done = min(self._run, math.floor((now - self._run_begin) / self._run_s) + 1)
            self._run, self.due = done, self._run_begin + done * self._run_s

    def advance(self, now: float) -> tuple[list[Job], list[Job]]:
        """End what was due at `now`, and go on: the jobs that got their first token, and those that ended."""
        begun, ended = list[Job](), list[Job]()
        self._steps += self._run
        for job, count in self._chunks:
            job.left -= count
            if not job.left:
                self._prefilled(job, now)
                begun.append(job)
        self._prefilling = deque(job for job in self._prefilling if job.left)
        while self._decoding and self._decoding[0][0] <= self._steps:
            job = heapq.heappop(self._decoding)[2]
            job.ended = now
            self._room += _size(job)
            ended.append(job)
        self._begin(now)
        return begun, ended

    def _prefilled(self, job: Job, now: float) -> None:
        job.first = now
        self.prefills += 1
        self._cache.add(job.row.hash_ids)
        # The step that ends a prefill makes the first token.
        heapq.heappush(self._decoding, (self._steps + job.row.output_tokens - 1, next(self._order), job))

    def _begin(self, now: float) -> None:
        """Start the next step, or the next many where nothing can change before a sequence ends."""
        budget, self._chunks = self._model.batched_tokens - len(self._decoding), []
        for job in self._prefilling:
            budget -= self._chunk(job, budget)
        while budget > 0 and self._has_room():
            job = self._admit(now)
            budget -= self._chunk(job, budget)
        tokens = sum(count for _, count in self._chunks)
        decodes = len(self._decoding)
        if not tokens and not decodes:
            self._run, self.due = 0, math.inf
            return
        self._run_s = self._model.step_s + self._model.sequence_s * decodes + tokens / self._model.prefill_rate
        self._run = 1 if tokens else max(1, self._decoding[0][0] - self._steps)
        self._run_begin, self.due = now, now + self._run * self._run_s

    def _chunk(self, job: Job, budget: int) -> int:
        """Let a job have its part of the step's tokens; how many that are."""
        count = min(job.left, max(0, budget))
        if count:
            self._chunks.append((job, count))
        return count

    def _has_room(self) -> bool:
        """Whether the first in the queue may join: there is a batch slot, and memory for all of it."""
        if not self.waiting or self.running >= self._model.max_seqs:
            return False
        return not self.running or _size(self.waiting[0]) <= self._room

    def _admit(self, now: float) -> Job:
        job = self.waiting.popleft()
        self._room -= _size(job)
        cached = cached_tokens(self._cache, job.row)
        self.prompt_tokens += job.row.prompt_tokens
        self.hit_tokens += cached
        job.left = job.row.prompt_tokens - cached
        self._prefilling.append(job)
        self._queue[bisect.bisect_left(LATENCY_BUCKETS, now - job.queued)] += 1
        return job

    def sample(self, now: float) -> Sample:
        """What a scrape of it would find."""
        model, running = self._model, self.running
        bounds = (*LATENCY_BUCKETS, math.inf)
        return Sample(
            at=now,
            running=running,
            waiting=len(self.waiting),
            oldest_waiting=now - self.waiting[0].queued if self.waiting else 0.0,
            max_seqs=model.max_seqs,
            batch_utilization=running / self._admissible(),
            kv_capacity=model.kv_tokens,
            kv_used=model.kv_tokens - self._room,
            kv_cached=min(len(self._cache) * BLOCK_TOKENS, max(0, self._room)),
            prompt_tokens=self.prompt_tokens,
            query_tokens=self.prompt_tokens,
            hit_tokens=self.hit_tokens,
            prefills=self.prefills,
            queue=tuple(zip(bounds, itertools.accumulate(self._queue), strict=True)),
        )

    def _admissible(self) -> int:
        """Sequences that it could run now: what memory admits at the tokens that those running have."""
        running, used = self.running, self._model.kv_tokens - self._room
        fits = math.floor(self._model.kv_tokens * running / used) if used > 0 else self._model.max_seqs
        return max(1, running, min(self._model.max_seqs, fits))

    def figures(self) -> Figures:
        """What a gateway reads of it."""
        return Figures(
            query_tokens=self.prompt_tokens,
            hit_tokens=self.hit_tokens,
            capacity_tokens=self._model.kv_tokens,
            running=self.running,
            waiting=len(self.waiting),
            max_running=self._model.max_seqs,
        )
