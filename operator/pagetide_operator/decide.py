"""One reconcile of one service: from what was observed to what is to be done. Pure; `reconcile.py` does it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pagetide_spec.errors import ResourceError
from pagetide_spec.inference_service import InferenceService
from pagetide_spec.resource import dropped_fields, parse

from .cluster.kinds import POOL
from .cluster.times import timestamp
from .desired.children import Platform, children, wanted_replicas
from .plan import Key, Plan, Settled, plan
from .prefetch import fetch_state, fetching_of
from .verdicts.capacity import Capacity, total
from .verdicts.failures import REASONS, Failure
from .verdicts.pool import pool_verdict
from .verdicts.rollout import choose_rollout, waits_for_device
from .verdicts.status import (
    ONE_BY_ONE,
    PREFETCHING,
    Children,
    Status,
    Verdict,
    changes,
    condition_of,
    invalid_status,
    service_status,
)

Object = Mapping[str, Any]

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclasses.dataclass(frozen=True)
class Seen:
    """What one decision is made from.

    Attributes:
        capacities: of pods, by uid.
        scaling: the autoscaler's conditions.
        fetchers: the pods that fill the cache.
        without: what kept optional children from being made, by kind.
    """

    resource: Object
    children: Sequence[Object]
    capacities: Mapping[str, Capacity] = dataclasses.field(default_factory=dict)
    scaling: Sequence[Verdict] = ()
    fetchers: Sequence[Object] = ()
    without: Mapping[str, Failure] = dataclasses.field(default_factory=dict)

    @property
    def deployment(self) -> Object | None:
        """The live Deployment."""
        return next((c for c in self.children if c["kind"] == "Deployment"), None)

    @property
    def pods(self) -> list[Object]:
        """The live pods."""
        return [c for c in self.children if c["kind"] == "Pod"]


def understood(resource: Object) -> InferenceService:
    """The service that a resource of the cluster describes.

    Raises:
        ResourceError: it is invalid, or has a field that the API server dropped without a word.
    """
    service = parse(resource)
    problems = dropped_fields(_last_applied(resource))
    if problems:
        raise ResourceError(problems)
    return service


def _last_applied(resource: Object) -> Object:
    """The manifest that kubectl noted in the resource; an empty one where there is none that can be read."""
    annotations = resource["metadata"].get("annotations") or {}
    try:
        found = json.loads(annotations.get(_LAST_APPLIED) or "{}")
    except (json.JSONDecodeError, RecursionError):  # not kubectl's work, and no reason to refuse a valid resource
        return {}
    return found if isinstance(found, dict) else {}


def plan_for(
    service: InferenceService, seen: Seen, platform: Platform, settled: Mapping[Key, Settled], now: float
) -> Plan:
    """What to do to the children; nothing while the service is paused."""
    if service.paused:
        return Plan((), ())
    rollout = choose_rollout(service, seen.deployment, seen.pods, platform.surge_patience, now)
    replicas = wanted_replicas(service, seen.resource.get("status") or {})
    fetching = fetching_of(service, platform, seen.deployment, seen.children)
    desired = children(service, platform, replicas, rollout, seen.deployment, fetching)
    return plan(desired, seen.children, settled, service.uid)


def status_changes(
    seen: Seen, service: InferenceService | ResourceError, trouble: Failure | None, now: float
) -> Status:
    """The part of the status that must be written; empty where none."""
    before = seen.resource.get("status") or {}
    time = timestamp(now)
    if isinstance(service, ResourceError):
        after = invalid_status(service, seen.resource, seen.deployment, time)
    else:
        wanted = wanted_replicas(service, before)
        fetch = fetch_state(service, seen.deployment, seen.children, seen.fetchers)
        pool = pool_verdict(service, seen.children, seen.without.get(POOL.name))
        found = Children(seen.deployment, seen.pods, total(seen.pods, seen.capacities), fetch, pool)
        after = service_status(service, before, found, wanted, trouble, time, seen.scaling)
    return changes(before, after)


def events_for(before: Object, change: Object) -> list[tuple[str, str, str]]:
    """(type, reason, message) of the Events that a change of status calls for.

    One whenever Ready's reason changes, and one for a failure that Progressing alone reports.
    """
    found = []
    ready, progress = (_news(before, change, kind) for kind in ("Ready", "Progressing"))
    if ready:
        is_fine = ready["status"] == "True" or ready["reason"] in ("Starting", "ScaledToZero", PREFETCHING.reason)
        found.append(("Normal" if is_fine else "Warning", ready["reason"], ready["message"]))
    is_told = progress and progress["reason"] == condition_of({**before, **change}, "Ready").get("reason")
    if progress and progress["reason"] in {*REASONS, ONE_BY_ONE.reason} and not is_told:
        found.append(("Warning", progress["reason"], progress["message"]))
    return found


def _news(before: Object, change: Object, kind: str) -> Object | None:
    old, new = condition_of(before, kind), condition_of(change, kind)
    is_same = (old.get("reason"), old.get("status")) == (new.get("reason"), new.get("status"))
    return None if is_same or not new else new


def look_again_after(seen: Seen, patience: float, now: float) -> float | None:
    """Seconds until time alone changes the decision, or None."""
    if seen.deployment is None:
        return None
    since = waits_for_device(seen.deployment, seen.pods)
    return max(0.0, since + patience - now) if since is not None and now - since < patience else None
