"""A trace through a router, a controller and model servers: discrete events, no clock but the trace's."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Sequence

from pagetide_gateway.routing.routers import ExpectedTime, Prompt, Router
from pagetide_spec.traces import BLOCK_TOKENS, Row

from ..autoscaling.autoscaler import Fleet, Replica
from .controllers import Controller, Orders
from .routing import OBSERVE_S
from .server import Job, Server, ServerModel


@dataclasses.dataclass(eq=False)
class _Pod:
    """A replica over its life; `leaving`: it goes as soon as it has nothing left to do."""

    server: Server
    created: float
    ready_at: float
    draining_at: float | None = None
    leaving: bool = False
    gone: float = math.inf


@dataclasses.dataclass
class Played:
    """What came of a replay: every job, and (time, desired, ready, waiting) at each look and change.

    `replica_seconds` count from the wish for a replica to its end, or to the last request's arrival, at `seconds`.
    """

    controller: Controller
    jobs: list[Job]
    replica_seconds: float
    seconds: float
    timeline: list[tuple[float, int, int, int]]
    query_tokens: int
    hit_tokens: int


class Replay:
    """One trace under one controller; `run` may be called once. `replicas` are ready at the begin."""

    def __init__(
        self,
        rows: Sequence[Row],
        model: ServerModel,
        controller: Controller,
        replicas: int,
        router: Router | None = None,
    ) -> None:
        self._rows, self._model, self._controller = rows, model, controller
        self._router = router or ExpectedTime()
        self._numbers, self._order = itertools.count(), itertools.count()
        self._pods: dict[str, _Pod] = {}
        self._all: list[_Pod] = []
        self._desired, self._wake = replicas, None if replicas else -math.inf
        self._held: list[Job] = []
        self._jobs: list[Job] = []
        self._events: list[tuple[float, int, str, str]] = []
        self._observe_at = 0.0
        self._timeline: list[tuple[float, int, int, int]] = []
        for _ in range(replicas):
            self._create(0.0, 0.0)

    def run(self) -> Played:
        """Every request to its end; the controller looks until the last one has come."""
        if self._controller.period_s < math.inf:
            self._at(0.0, "look", "")
        self._note(0.0)
        for row in self._rows:
            self._run_until(row.at)
            self._arrive(Job(row, row.at), row.at)
        end = self._rows[-1].at if self._rows else 0.0
        self._run_until(math.inf)
        pods = self._all
        return Played(
            self._controller,
            self._jobs,
            sum(max(0.0, min(p.gone, end) - p.created) for p in pods),
            end,
            self._timeline,
            sum(p.server.prompt_tokens for p in pods),
            sum(p.server.hit_tokens for p in pods),
        )

    def _at(self, when: float, kind: str, name: str) -> None:
        heapq.heappush(self._events, (when, next(self._order), kind, name))

    def _run_until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            now, _, kind, name = heapq.heappop(self._events)
            if kind == "look":
                self._look(now)
            elif kind == "ready":
                self._released(now)
            elif (pod := self._pods.get(name)) is not None and pod.server.due == now:
                self._advance(pod, now)

    # ---- requests

    def _arrive(self, job: Job, now: float) -> None:
        self._jobs.append(job)
        if not self._send(job, now):
            self._held.append(job)
            if not self._pods:
                self._wake = now

    def _send(self, job: Job, now: float) -> bool:
        names = [n for n, p in self._pods.items() if p.ready_at <= now and p.draining_at is None and not p.leaving]
        if not names:
            return False
        self._observe(now)
        prompt = Prompt(job.row.hash_ids, job.row.prompt_tokens, BLOCK_TOKENS)
        choice = self._router.choose(prompt, sorted(names), now)
        job.ticket, job.replica = self._router.send(prompt, choice, now), choice.replica
        server = self._pods[choice.replica].server
        server.add(job, now)
        self._schedule(server)
        return True

    def _observe(self, now: float) -> None:
        if now >= self._observe_at:
            self._observe_at = now + OBSERVE_S
            for name, pod in self._pods.items():
                if pod.ready_at <= now:
                    self._router.observe(name, pod.server.figures(), now)

    def _schedule(self, server: Server) -> None:
        if server.due < math.inf:
            self._at(server.due, "step", server.name)

    def _advance(self, pod: _Pod, now: float) -> None:
        begun, ended = pod.server.advance(now)
        for job in begun:
            if job.ticket is not None:
                self._router.first_token(job.ticket, now)
        for job in ended:
            if job.ticket is not None:
                self._router.end(job.ticket, now)
        self._schedule(pod.server)
        if pod.leaving and not pod.server.in_flight:
            self._end(pod, now)

    def _released(self, now: float) -> None:
        """A replica has become ready: what was held goes on."""
        held, self._held = self._held, []
        self._held = [job for job in held if not self._send(job, now)]
        self._note(now)

    # ---- replicas

    def _look(self, now: float) -> None:
        """Samples only of those that answer; the wake is as old as the first request that is held."""
        if self._held and not self._desired:
            self._wake = now
        alive = {n: p for n, p in self._pods.items() if not p.leaving}
        samples = {n: p.server.sample(now) for n, p in alive.items() if p.ready_at <= now}
        replicas = tuple(Replica(n, p.ready_at if p.ready_at <= now else None, p.draining_at) for n, p in alive.items())
        fleet = Fleet(self._desired, replicas, self._wake)
        self._obey(self._controller.look(fleet, samples, len(self._held), now), now)
        self._note(now)
        if now <= self._rows[-1].at or self._held:
            self._at(now + self._controller.period_s, "look", "")

    def _obey(self, orders: Orders, now: float) -> None:
        for name in orders.undrain:
            self._pods[name].draining_at = None
        if orders.drain:
            self._pods[orders.drain].draining_at = now
        while self._desired < orders.desired:
            self._desired += 1
            self._create(now, self._model.startup_s)
        while self._desired > orders.desired:
            self._desired -= 1
            self._leave(self._victim(orders.remove, now), now)

    def _create(self, now: float, startup_s: float) -> None:
        name = f"r{next(self._numbers):04}"
        pod = self._pods[name] = _Pod(Server(name, self._model), now, now + startup_s)
        self._all.append(pod)
        if startup_s:
            self._at(pod.ready_at, "ready", name)

    def _victim(self, named: str | None, now: float) -> _Pod:
        """The one that was named, else a ReplicaSet's choice: not ready before ready, young before old."""
        if named is not None:
            return self._pods[named]
        alive = [p for p in self._pods.values() if not p.leaving]
        return max(alive, key=lambda p: (p.ready_at > now, p.ready_at, p.server.name))

    def _leave(self, pod: _Pod, now: float) -> None:
        pod.leaving = True
        if not pod.server.in_flight:
            self._end(pod, now)

    def _end(self, pod: _Pod, now: float) -> None:
        pod.gone = now
        del self._pods[pod.server.name]
        self._router.retain(self._pods)

    def _note(self, now: float) -> None:
        ready = sum(p.ready_at <= now and not p.leaving for p in self._pods.values())
        waiting = len(self._held) + sum(len(p.server.waiting) for p in self._pods.values())
        self._timeline.append((now, self._desired, ready, waiting))
