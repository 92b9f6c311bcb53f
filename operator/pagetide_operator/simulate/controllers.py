"""What decides how many replicas there are: Pagetide's autoscaler, and what it is compared with."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from pagetide_spec.inference_service import Autoscaling

from ..autoscaling.autoscaler import Autoscaler, Fleet
from ..autoscaling.behavior import Change, Wish, allowed
from ..autoscaling.explain import entry_of
from ..autoscaling.policy import remembered
from ..autoscaling.samples import Sample
from ..autoscaling.windows import SCRAPE_S

HPA_S = 15.0
KPA_S = 2.0


@dataclasses.dataclass(frozen=True)
class Orders:
    """What is to be done: how many replicas, which get nothing new, which go."""

    desired: int
    drain: str | None = None
    undrain: tuple[str, ...] = ()
    remove: str | None = None


class Controller(Protocol):
    """Evaluated every `period_s` seconds. `samples`: of the ready replicas; `held`: requests that wait for one."""

    name: str
    period_s: float
    decisions: list[dict[str, Any]]

    def look(self, fleet: Fleet, samples: Mapping[str, Sample], held: int, now: float) -> Orders:
        """What is to be done at `now`."""
        ...


class Fixed:
    """As many as there were at the begin."""

    period_s = math.inf

    def __init__(self, replicas: int) -> None:
        self.name, self.replicas = f"fixed: {replicas}", replicas
        self.decisions: list[dict[str, Any]] = []

    def look(self, fleet: Fleet, samples: Mapping[str, Sample], held: int, now: float) -> Orders:
        """Nothing."""
        return Orders(fleet.desired)


class Pagetide:
    """The operator's own autoscaler."""

    name, period_s = "pagetide", SCRAPE_S

    def __init__(self, scaling: Autoscaling, drain_s: float) -> None:
        self._scaling, self._drain_s = scaling, drain_s
        self._brain: Autoscaler | None = None
        self.decisions: list[dict[str, Any]] = []

    def look(self, fleet: Fleet, samples: Mapping[str, Sample], held: int, now: float) -> Orders:
        """One step of the autoscaler."""
        if self._brain is None:
            self._brain = Autoscaler(remembered((), fleet.desired, now))
        for name, sample in samples.items():
            self._brain.saw(name, sample)
        step = self._brain.step(fleet, self._scaling, self._drain_s, now)
        if step.is_change:
            self._brain.made(step, self._scaling, now)
            entry = entry_of(step.decision, step.desired, now)
            self.decisions.append({**entry, "time": round(now, 1)})
        return Orders(step.desired, step.drain, step.undrain, step.remove)


class QueueHpa:
    """HorizontalPodAutoscaler v2 on the mean number of waiting requests a pod, with the service's own `behavior`."""

    name, period_s = "HPA on queue length", HPA_S

    def __init__(self, scaling: Autoscaling, target: float) -> None:
        self._scaling, self._target = scaling, target
        self._least = max(1, scaling.min_replicas)
        self._wishes: list[Wish] = []
        self._changes: list[Change] = []
        self.decisions: list[dict[str, Any]] = []

    def look(self, fleet: Fleet, samples: Mapping[str, Sample], held: int, now: float) -> Orders:
        """The controller's rule: the ratio of mean and target, tolerance 0.1, silent pods at 0% or at 100%."""
        current = fleet.desired
        wanted = min(max(self._wanted(current, samples), self._least), self._scaling.max_replicas)
        # The controller, too, takes what it finds at first for a wish.
        before = [w for w in self._wishes if w.at > now - 3600] or [Wish(now, current)]
        self._wishes = [*before, Wish(now, wanted)]
        desired = allowed(current, self._wishes, self._changes, self._scaling, now).replicas
        if desired != current:
            self._changes.append(Change(now, current, desired))
            self.decisions.append({"time": round(now, 1), "from": current, "to": desired})
        return Orders(desired)

    def _wanted(self, current: int, samples: Mapping[str, Sample]) -> int:
        if not samples:
            return current
        waiting = sum(s.waiting for s in samples.values())
        ratio = waiting / (len(samples) * self._target)
        if abs(ratio - 1) <= 0.1:
            return current
        missing = max(0, current - len(samples))
        filled = (waiting + (0 if ratio > 1 else missing * self._target)) / (current * self._target)
        if abs(filled - 1) <= 0.1 or (filled > 1) != (ratio > 1):
            return current
        return math.ceil(filled * current)


class ConcurrencyKpa:
    """Knative's autoscaler on open requests: a mean of 60 s, and of 6 s in a panic, in which nothing shrinks.

    Without its activator's burst capacity and rates of change, which do not bind at such sizes.
    """

    name, period_s = "KPA on concurrency", KPA_S
    _STABLE_S, _PANIC_S, _PANIC_AT = 60.0, 6.0, 2.0

    def __init__(self, scaling: Autoscaling, target: float) -> None:
        self._scaling, self._target = scaling, target
        self._seen: deque[tuple[float, float]] = deque()
        self._panic_at, self._panic_most = -math.inf, 0
        self.decisions: list[dict[str, Any]] = []

    def look(self, fleet: Fleet, samples: Mapping[str, Sample], held: int, now: float) -> Orders:
        """The greater of both while in panic, else the stable one."""
        self._seen.append((now, held + sum(s.running + s.waiting for s in samples.values())))
        while self._seen[0][0] <= now - self._STABLE_S:
            self._seen.popleft()
        stable, quick = self._replicas(self._STABLE_S, now), self._replicas(self._PANIC_S, now)
        if quick >= self._PANIC_AT * max(1, len(samples)):
            self._panic_most = max(quick, self._panic_most if self._is_panic(now) else 0, fleet.desired)
            self._panic_at = now
        wanted = max(stable, quick, self._panic_most) if self._is_panic(now) else stable
        desired = min(max(wanted, 1, self._scaling.min_replicas), self._scaling.max_replicas)
        if desired != fleet.desired:
            self.decisions.append({"time": round(now, 1), "from": fleet.desired, "to": desired})
        return Orders(desired)

    def _is_panic(self, now: float) -> bool:
        return now - self._panic_at < self._STABLE_S

    def _replicas(self, seconds: float, now: float) -> int:
        counts = [count for at, count in self._seen if at > now - seconds]
        return math.ceil(sum(counts) / len(counts) / self._target)
