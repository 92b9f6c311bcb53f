"""Observation, spec and time -> decision: the whole rule of scaling in one pure function, `decide`.

What must be remembered between two decisions is data, too: it goes in as `Memory` and comes out changed in the
decision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pagetide_spec.inference_service import Autoscaling

from .behavior import Change, Wish, allowed
from .guard import GUARD_S, holds_cache
from .signals import Ask, Observation, asks, by_queue, is_one_hot

# A rate that was seen grows by so much a second: the mix of requests changes, and only a full replica shows the new
# one. After 14 minutes it is 15% higher, and what was needed for 8 replicas is tried with 7.
RATE_GROWTH = 0.01 / 60
# One scrape's rate is as uneven as its requests are: the last few count together.
RATE_WEIGHT = 0.3
_MOST_CHANGES = 100


@dataclasses.dataclass(frozen=True, slots=True)
class Rate:
    """Prompt tokens per second of one replica, as seen at a time."""

    value: float | None = None
    at: float = 0.0

    def at_time(self, now: float) -> float | None:
        """What it is taken to be by now."""
        return None if self.value is None else self.value * (1 + RATE_GROWTH * (now - self.at))


NO_RATE = Rate()


@dataclasses.dataclass(frozen=True)
class Memory:
    """What a service's decisions rest on beside the present.

    Attributes:
        wishes: what the signals asked for, oldest first, as far back as a stabilization window goes.
        changes: made changes, oldest first.
        busy_at: when it last had a request, was woken, or had a replica start. None: nothing is known yet.
        guarded_since: since when the cache alone keeps a replica.
        full: prompt tokens per second that full replicas computed.
        late: at which requests waited too long, such that it is 1 / `batchUtilization` of what each was asked for.
    """

    wishes: tuple[Wish, ...] = ()
    changes: tuple[Change, ...] = ()
    busy_at: float | None = None
    guarded_since: float | None = None
    full: Rate = NO_RATE
    late: Rate = NO_RATE


@dataclasses.dataclass(frozen=True)
class Decision:
    """How many replicas there should be, and why.

    Attributes:
        replicas: wanted now; one less than `current` at most.
        wanted: what the signals ask for together, before limits.
        winner: the signal that asked for the most; `idle` and `wake` stand for themselves.
        limiter: what keeps `replicas` from being `wanted`, in one word; empty where nothing does.
        is_measured: some replica's load was scraped.
    """

    current: int
    replicas: int
    wanted: int
    winner: str
    limiter: str
    asks: tuple[Ask, ...]
    seen: Observation
    memory: Memory
    is_measured: bool = True


def decide(seen: Observation, scaling: Autoscaling, memory: Memory, wake: float | None, now: float) -> Decision:
    """What to do about the service that looks like `seen` at `now`. `wake`: when a gateway last asked for a replica."""
    memory = _with_activity(_with_rates(memory, seen, scaling, now), seen, scaling, wake, now)
    seen = dataclasses.replace(seen, rate=_rate(memory, now))
    if seen.desired == 0:
        return _asleep(seen, scaling, memory, wake)
    found = asks(seen, scaling)
    is_idle = _is_idle(seen, scaling, memory, now)
    if not found:
        # Without any data nothing changes; what has been wished for until now does not count as agreement, either.
        memory = _with_wish(memory, seen.desired, scaling, now)
        return Decision(seen.desired, seen.desired, seen.desired, "", "", (), seen, memory, is_measured=False)
    top = max(found, key=lambda a: a.replicas)
    wanted = 0 if is_idle else max(1, top.replicas)
    bounded = min(max(wanted, scaling.min_replicas), scaling.max_replicas)
    memory = _with_wish(memory, bounded, scaling, now)
    out = Decision(
        seen.desired, bounded, wanted, "idle" if is_idle else top.signal, _bound(wanted, bounded), tuple(found), seen,
        memory,
    )  # fmt: skip
    return _limited(out, scaling, is_idle, now)


def _bound(wanted: int, bounded: int) -> str:
    if wanted == bounded:
        return ""
    return "MaxReplicas" if wanted > bounded else "MinReplicas"


def _asleep(seen: Observation, scaling: Autoscaling, memory: Memory, wake: float | None) -> Decision:
    """At zero only a held request counts."""
    replicas = max(1, scaling.min_replicas) if _is_awaited(scaling, memory, wake) else 0
    winner = "wake" if replicas else "idle"
    return Decision(0, replicas, replicas, winner, "", (), seen, memory)


def _is_awaited(scaling: Autoscaling, memory: Memory, wake: float | None) -> bool:
    """Whether a gateway has asked for a replica since the service went to zero.

    Gateways have other clocks, but no service goes to zero within `idleSeconds` of such an ask: a later one than that
    is a new one.
    """
    if wake is None:
        return False
    slept = next((c.at for c in reversed(memory.changes) if c.after == 0), None)
    return slept is None or wake > slept - scaling.idle_seconds


def _limited(out: Decision, scaling: Autoscaling, is_idle: bool, now: float) -> Decision:
    """The decision after `behavior`, the cache's guard, and one at a time."""
    memory, current = out.memory, out.current
    # The way to zero has a waiting time of its own.
    wishes = memory.wishes[-1:] if is_idle else memory.wishes
    may = allowed(current, wishes, memory.changes, scaling, now)
    limiter, replicas = may.limiter or out.limiter, may.replicas
    if replicas >= current:
        memory = dataclasses.replace(memory, guarded_since=None)
        return dataclasses.replace(out, replicas=replicas, limiter=limiter, memory=memory)
    if not is_idle and not holds_cache(out.seen, scaling):
        since = now if memory.guarded_since is None else memory.guarded_since
        memory = dataclasses.replace(memory, guarded_since=since)
        if now - since < GUARD_S:
            return dataclasses.replace(out, replicas=current, limiter="CacheGuard", memory=memory)
    if replicas < current - 1:
        replicas, limiter = current - 1, "OneAtATime"
    return dataclasses.replace(out, replicas=replicas, limiter=limiter, memory=memory)


def _is_idle(seen: Observation, scaling: Autoscaling, memory: Memory, now: float) -> bool:
    """Whether it may go to zero: no request for long enough, and nothing else against it.

    What is still loading may have been woken for a request that waits for it; what is silent may be at work.
    """
    if scaling.min_replicas > 0 or seen.starting or seen.missing or memory.busy_at is None:
        return False
    return now - memory.busy_at >= scaling.idle_seconds


def _with_activity(memory: Memory, seen: Observation, scaling: Autoscaling, wake: float | None, now: float) -> Memory:
    """The first scrape counts as activity: what was before is not known."""
    is_busy = seen.starting > 0 or any(load.is_busy for load in seen.loads)
    times = [memory.busy_at or now] + ([now] if is_busy else [])
    if wake is not None:
        times.append(min(wake, now))  # its clock may be ahead of ours
    return dataclasses.replace(memory, busy_at=max(times))


def _with_rates(memory: Memory, seen: Observation, scaling: Autoscaling, now: float) -> Memory:
    """Note what full replicas compute, and at what demand of each requests already wait too long."""
    if not seen.loads:
        return memory
    full = [load.full_rate for load in seen.loads if load.full_rate]
    served = sum(load.served for load in seen.loads) / len(seen.loads)
    known = memory.full.at_time(now)
    if full:
        found = max(sum(full) / len(full), served)
        rate = found if known is None else known + RATE_WEIGHT * (found - known)
        memory = dataclasses.replace(memory, full=Rate(rate, now))
    elif known is not None and served > known:
        memory = dataclasses.replace(memory, full=Rate(served, now))
    # Not while young replicas have yet to take their part.
    is_whole = seen.settled == len(seen.loads) == seen.desired
    if is_whole and by_queue(seen, scaling).replicas and not is_one_hot(seen, scaling):
        each = seen.demand / (len(seen.loads) * scaling.batch_utilization)
        bound = memory.late.at_time(now)
        if bound is None or each < bound:
            memory = dataclasses.replace(memory, late=Rate(each, now))
    return memory


def _rate(memory: Memory, now: float) -> float | None:
    known = [rate for rate in (memory.full.at_time(now), memory.late.at_time(now)) if rate]
    return min(known, default=None)


def _with_wish(memory: Memory, replicas: int, scaling: Autoscaling, now: float) -> Memory:
    rules = (scaling.scale_up, scaling.scale_down)
    horizon = now - max(r.stabilization_window_seconds for r in rules)
    kept = tuple(w for w in memory.wishes if w.at > horizon)
    return dataclasses.replace(memory, wishes=(*kept, Wish(now, replicas)))


def with_change(memory: Memory, before: int, after: int, scaling: Autoscaling, now: float) -> Memory:
    """`memory` after a change was made; the last one to zero is kept for as long as it may matter."""
    periods = [p.period_seconds for r in (scaling.scale_up, scaling.scale_down) for p in r.policies]
    horizon = now - max([0, *periods])
    kept = tuple(c for c in memory.changes if c.at > horizon or c.after == 0)[-_MOST_CHANGES:]
    return dataclasses.replace(memory, changes=(*kept, Change(now, before, after)))


def remembered(changes: Sequence[Change], desired: int, now: float) -> Memory:
    """What is known after a restart: the changes of the status; and nothing shrinks before the windows are full."""
    return Memory(wishes=(Wish(now, desired),), changes=tuple(changes), busy_at=now)
