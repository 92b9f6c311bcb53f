"""Whether one replica fewer can hold what there is, and which would leave. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pagetide_spec.inference_service import Autoscaling

from .signals import Observation
from .windows import Load

# For so long the cached blocks alone may keep a replica.
GUARD_S = 600.0


def hot_tokens(load: Load) -> float:
    """Cached tokens of a replica that requests of the last window came back to."""
    return min(load.kv_cached, load.hit_tokens)


def holds_cache(seen: Observation, scaling: Autoscaling) -> bool:
    """Whether one replica fewer has room for the tokens in use and for the cached ones that are worth keeping."""
    wanted = seen.kv_used + sum(map(hot_tokens, seen.loads))
    return wanted <= (seen.desired - 1) * seen.kv_capacity * scaling.kv_cache_utilization


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A replica that might leave.

    Attributes:
        is_ready: it answers requests.
        ready_at: since when; 0 where it does not.
        load: None where its metrics cannot be scraped: it may be as busy as can be.
        neighbours: replicas of the service on its node.
    """

    name: str
    is_ready: bool
    ready_at: float = 0.0
    load: Load | None = None
    neighbours: int = 0


def choose_victim(candidates: Sequence[Candidate]) -> Candidate | None:
    """Which replica is removed: one that is not ready yet, else the one with the least in flight and the coldest cache.

    A ReplicaSet removes pods that are not ready before all others, whatever we would choose. One without metrics is
    the last choice.
    """
    return min(candidates, key=_cost, default=None)


def _cost(one: Candidate) -> tuple[object, ...]:
    load = one.load or Load()
    return (one.is_ready, one.load is None, load.in_flight, hot_tokens(load), load.kv_cached, one.name)


def replicaset_victim(candidates: Sequence[Candidate]) -> Candidate | None:
    """The replica to remove without pod-deletion-cost (before 1.22): the one that its ReplicaSet will take."""
    return min(candidates, key=lambda c: (c.is_ready, -c.neighbours, -c.ready_at, c.name), default=None)
