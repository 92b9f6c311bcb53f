"""How fast replicas may change: the `behavior` of HorizontalPodAutoscaler v2. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Literal

from pagetide_spec.inference_service import Autoscaling, Policy, ScalingRules

Limiter = Literal["", "StabilizationWindow", "ScalingPolicy", "ScaleUpDisabled", "ScaleDownDisabled"]


@dataclasses.dataclass(frozen=True, slots=True)
class Wish:
    """What the signals asked for at one time."""

    at: float
    replicas: int


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One change that was made."""

    at: float
    before: int
    after: int


@dataclasses.dataclass(frozen=True, slots=True)
class Allowed:
    """How many replicas there may be, and what stood in the way of as many as were asked for."""

    replicas: int
    limiter: Limiter = ""


def allowed(
    current: int, wishes: Sequence[Wish], changes: Sequence[Change], scaling: Autoscaling, now: float
) -> Allowed:
    """How far to follow the last of `wishes`, from `current` replicas, after those `changes`."""
    steady = stabilized(current, wishes, scaling, now)
    limit = limited(current, steady, changes, scaling, now)
    if limit.limiter:
        return limit
    return Allowed(steady, "StabilizationWindow" if steady != wishes[-1].replicas else "")


def stabilized(current: int, wishes: Sequence[Wish], scaling: Autoscaling, now: float) -> int:
    """Up to the least wish of the up window, down to the greatest of the down window; `current` between the two."""
    least = min(w.replicas for w in _within(wishes, now, scaling.scale_up.stabilization_window_seconds))
    greatest = max(w.replicas for w in _within(wishes, now, scaling.scale_down.stabilization_window_seconds))
    return min(max(current, least), greatest)


def _within(wishes: Sequence[Wish], now: float, seconds: float) -> Iterable[Wish]:
    """The wishes of the last so many seconds; always the last one."""
    return [w for w in wishes[:-1] if w.at > now - seconds] + [wishes[-1]]


def limited(current: int, wanted: int, changes: Sequence[Change], scaling: Autoscaling, now: float) -> Allowed:
    """`wanted` within what the policies allow, from `current` replicas."""
    if wanted > current:
        return _up(current, wanted, changes, scaling.scale_up, now)
    if wanted < current:
        return _down(current, wanted, changes, scaling.scale_down, now)
    return Allowed(current)


def _up(current: int, wanted: int, changes: Sequence[Change], rules: ScalingRules, now: float) -> Allowed:
    if rules.select_policy == "Disabled":
        return Allowed(current, "ScaleUpDisabled")
    if not rules.policies:
        return Allowed(wanted)
    ends = [_end_up(current - _net(changes, now - p.period_seconds), p) for p in rules.policies]
    limit = max(current, max(ends) if rules.select_policy == "Max" else min(ends))
    return Allowed(limit, "ScalingPolicy") if wanted > limit else Allowed(wanted)


def _down(current: int, wanted: int, changes: Sequence[Change], rules: ScalingRules, now: float) -> Allowed:
    if rules.select_policy == "Disabled":
        return Allowed(current, "ScaleDownDisabled")
    if not rules.policies:
        return Allowed(wanted)
    ends = [_end_down(current - _net(changes, now - p.period_seconds), p) for p in rules.policies]
    limit = min(current, min(ends) if rules.select_policy == "Max" else max(ends))
    return Allowed(limit, "ScalingPolicy") if wanted < limit else Allowed(wanted)


def _net(changes: Iterable[Change], since: float) -> int:
    """By how many replicas the changes after `since` have raised the number."""
    return sum(c.after - c.before for c in changes if c.at > since)


def _end_up(start: int, policy: Policy) -> int:
    if policy.type == "Pods":
        return start + policy.value
    return math.ceil(start * (100 + policy.value) / 100)


def _end_down(start: int, policy: Policy) -> int:
    if policy.type == "Pods":
        return start - policy.value
    return max(0, math.floor(start * (100 - policy.value) / 100))
