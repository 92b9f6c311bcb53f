"""One service over time: scrapes in, steps out. Knows no cluster; the operator, the local runner and the simulation
drive it alike. The caller carries out what a step says; the next step sees in the fleet what has come of it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from pagetide_spec.inference_service import Autoscaling

from .guard import Candidate, choose_victim, replicaset_victim
from .policy import Decision, Memory, decide, with_change
from .samples import Sample
from .signals import Observation
from .windows import WINDOW_S, Load, Window

# Until every gateway has seen that a replica drains.
NOTICE_S = 3.0


@dataclasses.dataclass(frozen=True, slots=True)
class Replica:
    """One replica that exists and is not on its way out.

    Attributes:
        name: differs between any two replicas over all time.
        draining_at: since when it gets no new requests; None where it does.
        ready_at: since when it answers; None where it does not.
        neighbours: others of the service on its node.
    """

    name: str
    ready_at: float | None = None
    draining_at: float | None = None
    neighbours: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Fleet:
    """A service's replicas now. `desired`: how many were asked for; `is_rolling`: older ones are being replaced."""

    desired: int
    replicas: Sequence[Replica]
    wake: float | None = None
    is_rolling: bool = False


@dataclasses.dataclass(frozen=True)
class Step:
    """What is to be done.

    Attributes:
        desired: how many replicas to ask for from now on.
        remove: the replica that is to go where `desired` falls.
        drain: a replica that from now on gets nothing new.
        undrain: replicas that get requests again.
        is_change: `desired` differs from the fleet's.
    """

    decision: Decision
    desired: int
    remove: str | None = None
    drain: str | None = None
    undrain: tuple[str, ...] = ()

    @property
    def is_change(self) -> bool:
        """Whether it changes the number of replicas."""
        return self.desired != self.decision.current


class Autoscaler:
    """Remembers a service's windows and wishes. `follows_cost`: the cluster lets us choose which replica leaves."""

    def __init__(self, memory: Memory, follows_cost: bool = True) -> None:
        self.memory = memory
        self._windows: dict[str, Window] = {}
        self._choose = choose_victim if follows_cost else replicaset_victim
        self._reason: Decision | None = None

    def saw(self, replica: str, sample: Sample) -> None:
        """Take in a scrape of a replica."""
        self._windows.setdefault(replica, Window()).add(sample)

    def step(self, fleet: Fleet, scaling: Autoscaling, drain_s: float, now: float) -> Step:
        """What to do at `now`. A change of `desired` counts once `made` is called."""
        names = {r.name for r in fleet.replicas}
        self._windows = {name: window for name, window in self._windows.items() if name in names}
        decision = decide(self._observation(fleet, now), scaling, self.memory, fleet.wake, now)
        self.memory = decision.memory
        return self._carried_out(decision, fleet, drain_s, now)

    def made(self, step: Step, scaling: Autoscaling, now: float) -> None:
        """The change that `step` asked for was made."""
        self.memory = with_change(self.memory, step.decision.current, step.desired, scaling, now)

    def _observation(self, fleet: Fleet, now: float) -> Observation:
        ready = [(r, self._load(r.name, now)) for r in fleet.replicas if r.ready_at is not None]
        told = [(r, load) for r, load in ready if load is not None]
        settled = sum(r.ready_at is not None and now - r.ready_at >= WINDOW_S for r, _ in told)
        return Observation(
            desired=fleet.desired,
            loads=tuple(load for _, load in told),
            settled=settled,
            missing=len(ready) - len(told),
            starting=len(fleet.replicas) - len(ready),
        )

    def _load(self, name: str, now: float) -> Load | None:
        window = self._windows.get(name)
        return window.load(now) if window else None

    def _carried_out(self, decision: Decision, fleet: Fleet, drain_s: float, now: float) -> Step:
        draining = [r for r in fleet.replicas if r.draining_at is not None]
        names = tuple(r.name for r in draining)
        if decision.replicas >= fleet.desired:
            self._reason = None
            # Where more serve than there should be, a leaver is still to be removed: no other must go instead.
            surplus = max(0, sum(r.ready_at is not None for r in fleet.replicas) - decision.replicas)
            return Step(decision, decision.replicas, undrain=names[surplus:])
        if len(fleet.replicas) < fleet.desired:
            return Step(decision, fleet.desired - 1)  # one that could not be made is not wanted any more
        if fleet.is_rolling or len(fleet.replicas) > fleet.desired:
            return Step(decision, fleet.desired)  # which ones remain is not settled yet
        if not draining:
            return self._begin(decision, fleet, now)
        leaver, *others = draining
        rest = tuple(r.name for r in others)
        if self._is_drained(leaver, drain_s, now):
            # Why it drains, unless the number has changed since: another may have left in its place.
            reason = self._reason if self._reason and self._reason.current == fleet.desired else decision
            return Step(reason, fleet.desired - 1, remove=leaver.name, undrain=rest)
        return Step(decision, fleet.desired, undrain=rest)

    def _begin(self, decision: Decision, fleet: Fleet, now: float) -> Step:
        """Choose the replica to remove; one that is not ready yet has nothing to finish."""
        candidates = [
            Candidate(r.name, r.ready_at is not None, r.ready_at or 0.0, self._load(r.name, now), r.neighbours)
            for r in fleet.replicas
        ]
        victim = self._choose(candidates)
        self._reason = decision
        if victim is None or not victim.is_ready:
            return Step(decision, fleet.desired - 1, remove=victim.name if victim else None)
        return Step(decision, fleet.desired, drain=victim.name)

    def _is_drained(self, replica: Replica, drain_s: float, now: float) -> bool:
        """Whether it may go: by its own metrics, scraped after all gateways knew, or because its time is over."""
        since = replica.draining_at if replica.draining_at is not None else math.inf
        if now - since >= max(drain_s, NOTICE_S):
            return True
        window = self._windows.get(replica.name)
        load = self._load(replica.name, now)
        return bool(window and load and window.last_at >= since + NOTICE_S and not load.in_flight)
