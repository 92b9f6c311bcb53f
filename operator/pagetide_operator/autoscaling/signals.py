"""What each signal of load asks for, one function each. Pure; no clock, no memory.

Every rule maps an `Observation` to an `Ask`; the largest wins.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from pagetide_spec.inference_service import Autoscaling

from .windows import WINDOW_S, Load, count_of, merged, quantile

# A ratio this close to 1 changes nothing, as in HorizontalPodAutoscaler.
TOLERANCE = 0.1
# What is left after a shrink must hold so many times the load: with 1.1, load that was steady brought back the
# replica just removed, now and then.
SHRINK_MARGIN = 1.2
# A long queue says little about how much is missing: no more than twice as many at once.
MOST_GROWTH = 2.0
# No signal asks for more, however small its target is: so much is written into any status.
MOST_REPLICAS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Observation:
    """One service at one time.

    Attributes:
        desired: replicas that were asked for; what is still starting is part of it.
        loads: of the ready replicas whose metrics were scraped.
        settled: how many of those have been ready for a whole window: what the queue looks like with the younger ones
            in place is not known yet.
        missing: ready replicas whose metrics cannot be scraped.
        starting: replicas that exist and are not ready yet.
        rate: uncached prompt tokens per second that one full replica was seen to compute of late; None: not known.
    """

    desired: int
    loads: Sequence[Load] = ()
    settled: int = 0
    missing: int = 0
    starting: int = 0
    rate: float | None = None

    @property
    def running(self) -> float:
        """Running sequences of all."""
        return sum(load.running for load in self.loads)

    @property
    def waiting(self) -> float:
        """Waiting requests of all."""
        return sum(load.waiting for load in self.loads)

    @property
    def capacity(self) -> float:
        """Sequences that one replica can run at once, on average."""
        return sum(load.capacity for load in self.loads) / max(1, len(self.loads))

    @property
    def kv_used(self) -> float:
        """Tokens of KV cache in use by running sequences, of all."""
        return sum(load.kv_used for load in self.loads)

    @property
    def kv_capacity(self) -> float:
        """Tokens of KV cache of one replica, on average."""
        return sum(load.kv_capacity for load in self.loads) / max(1, len(self.loads))

    @property
    def hit_ratio(self) -> float:
        """Looked-up prompt tokens that were cached; 0 where none were looked up."""
        asked = sum(load.query_tokens for load in self.loads)
        return sum(load.hit_tokens for load in self.loads) / asked if asked else 0.0

    @property
    def demand(self) -> float:
        """Uncached prompt tokens per second that clients ask for."""
        return sum(load.demand for load in self.loads)


@dataclasses.dataclass(frozen=True)
class Ask:
    """What one signal wants, and of what."""

    signal: str
    replicas: int


def asks(seen: Observation, scaling: Autoscaling) -> list[Ask]:
    """What each signal asks for; empty where no replica has metrics."""
    if not seen.loads:
        return []
    return [by_batch(seen, scaling), by_queue(seen, scaling), by_memory(seen, scaling), by_prompt(seen, scaling)]


def by_batch(seen: Observation, scaling: Autoscaling) -> Ask:
    """As many that running and waiting requests take `batchUtilization` of the batch slots."""
    places = seen.capacity * scaling.batch_utilization
    return Ask("batch", _held(seen, (seen.running + seen.waiting) / places))


def by_memory(seen: Observation, scaling: Autoscaling) -> Ask:
    """As many that the tokens in use take `kvCacheUtilization` of the KV cache."""
    room = seen.kv_capacity * scaling.kv_cache_utilization
    return Ask("memory", _held(seen, seen.kv_used / room if room else 0.0))


def by_prompt(seen: Observation, scaling: Autoscaling) -> Ask:
    """As many that the uncached prompt tokens keep each at `batchUtilization` of a full one's rate, and that what has
    piled up is done within a window.

    What the prefix cache answers costs nothing: the better it works, the less is asked for.
    """
    if not seen.rate:
        return Ask("prompt", 0)
    demand = seen.demand + sum(load.backlog for load in seen.loads) / WINDOW_S
    return Ask("prompt", _held(seen, demand / (seen.rate * scaling.batch_utilization)))


def by_queue(seen: Observation, scaling: Autoscaling) -> Ask:
    """More, where requests wait for a batch slot longer than they may.

    Only replicas that have been there for a whole window count: those started meanwhile are the answer to this very
    queue, and have yet to shorten it.
    """
    late = queue_p95(seen) / scaling.queue_time_seconds
    lacks_room = any(load.lacks_room for load in seen.loads)
    if late <= 1 + TOLERANCE or not lacks_room or not seen.settled:
        return Ask("queue", 0)
    growth = MOST_GROWTH if not is_one_hot(seen, scaling) else 1.0
    return Ask("queue", max(math.ceil(seen.settled * min(growth, late)), seen.settled + 1))


def queue_p95(seen: Observation) -> float:
    """Seconds that requests wait for a batch slot: the worst of the 95th percentile and of those that wait now.

    Of one replica as well, if requests wait in it: the average of all must not hide it.
    """
    worst = (quantile(load.queued, 0.95) for load in seen.loads if load.waiting)
    oldest = (load.oldest_waiting for load in seen.loads)
    return max(quantile(merged([load.queued for load in seen.loads]), 0.95), *worst, *oldest, 0.0)


def is_one_hot(seen: Observation, scaling: Autoscaling) -> bool:
    """Whether only some replicas are late while most have room: one more will do, and the rest is for the router."""
    full = sum(1 for load in seen.loads if load.waiting)
    others = [load.queued for load in seen.loads if not load.waiting]
    on_time = quantile(merged(others), 0.95) <= scaling.queue_time_seconds
    return 2 * full < len(seen.loads) and on_time and count_of(merged(others)) > 0


def _held(seen: Observation, exact: float) -> int:
    """Whole replicas for `exact` of them.

    Replicas without metrics count as idle when that means growing, and as full when it means shrinking, so that what
    is not known does neither. What is left after shrinking must hold some more, lest the next fluctuation bring
    back the one just removed.
    """
    exact = min(exact, MOST_REPLICAS)
    # Rounded, lest 0.1 * 3 / 0.3 take two.
    more = math.ceil(round(exact, 6))
    if more <= seen.desired:
        more = min(seen.desired, math.ceil(round(exact * SHRINK_MARGIN + seen.missing, 6)))
    is_near = seen.desired > 0 and abs(exact / seen.desired - 1) <= TOLERANCE
    return seen.desired if is_near else more
