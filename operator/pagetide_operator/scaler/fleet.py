"""A service's pods as the autoscaler sees them, and what is written into them. Pure."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pagetide_spec.names import ANNOTATION_DELETION_COST, ANNOTATION_DRAINING, ANNOTATION_WAKE

from ..autoscaling.autoscaler import Fleet, Replica
from ..cluster.pods import is_alive
from ..cluster.times import seconds_of, timestamp
from ..verdicts.rollout import is_rolling

Object = Mapping[str, Any]

# Of the pods of a ReplicaSet the one with the least cost goes first; all others are at 0.
LEAVES_FIRST = "-1000000000"


def fleet_of(resource: Object, deployment: Object | None, pods: Sequence[Object], desired: int) -> Fleet:
    """The fleet of a service of which `desired` replicas were asked for; a pod's name there is its uid."""
    alive = [p for p in pods if is_alive(p)]
    nodes = collections.Counter(p.get("spec", {}).get("nodeName") for p in alive)
    return Fleet(
        desired=desired,
        replicas=tuple(_replica(p, nodes[p.get("spec", {}).get("nodeName")] - 1) for p in alive),
        wake=wake_of(resource),
        is_rolling=deployment is not None and is_rolling(deployment),
    )


def wake_of(resource: Object) -> float | None:
    """When a gateway last asked for a replica of this service."""
    return _time(resource, ANNOTATION_WAKE)


def drain_patch(now: float) -> dict[str, Any]:
    """The marks by which gateways see that a pod drains, and its ReplicaSet that it goes first.

    The time is written to the second: the next one, lest the notice that gateways get be shorter than NOTICE_S.
    """
    return _annotations({ANNOTATION_DRAINING: timestamp(math.ceil(now)), ANNOTATION_DELETION_COST: LEAVES_FIRST})


def undrain_patch() -> dict[str, Any]:
    """What takes `drain_patch` back."""
    return _annotations({ANNOTATION_DRAINING: None, ANNOTATION_DELETION_COST: None})


def _annotations(values: Mapping[str, str | None]) -> dict[str, Any]:
    return {"metadata": {"annotations": dict(values)}}


def _replica(pod: Object, neighbours: int) -> Replica:
    ready: Object = next((c for c in pod.get("status", {}).get("conditions") or [] if c["type"] == "Ready"), {})
    since = ready.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp")
    return Replica(
        name=pod["metadata"]["uid"],
        ready_at=(seconds_of(since) if since else 0.0) if ready.get("status") == "True" else None,
        draining_at=_time(pod, ANNOTATION_DRAINING),
        neighbours=neighbours,
    )


def _time(thing: Object, annotation: str) -> float | None:
    """An annotation's time; None where it has none, or one that cannot be parsed."""
    text = (thing["metadata"].get("annotations") or {}).get(annotation)
    try:
        return seconds_of(text) if text else None
    except ValueError:
        return None
