"""The status of a service, from its children: pure, with the time as an argument."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pagetide_spec.errors import ResourceError
from pagetide_spec.inference_service import InferenceService
from pagetide_spec.names import selector_labels

from ..cluster.pods import is_ready
from .capacity import Capacity
from .failures import OF_PODS_TO_COME, Failure, worst_failure
from .rollout import is_current, is_one_by_one, is_rolling

Object = Mapping[str, Any]
Status = dict[str, Any]

PREFETCHING = Failure("Prefetching", "the model is being fetched into the cache")
ONE_BY_ONE = Failure("ReplacingOneByOne", "no device is free for a surge pod: one pod is replaced at a time")
_WHILE_SERVING = {*OF_PODS_TO_COME, ONE_BY_ONE.reason, PREFETCHING.reason}
_MESSAGE_LENGTH = 1000
POOL_CONDITION = "InferencePoolApplied"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One condition before it gets its times."""

    type: str
    holds: bool
    reason: str
    message: str


ASLEEP = Verdict("Ready", True, "ScaledToZero", "the next request wakes it")


@dataclasses.dataclass(frozen=True)
class Children:
    """The live children that the status is made of, and what the ready ones can hold, if that is known.

    `fetch`: that the model is still being fetched, or what keeps it from being; `pool`: what there is to say of the
    InferencePool, where one is asked for.
    """

    deployment: Object | None
    pods: Sequence[Object]
    capacity: Capacity | None = None
    fetch: Failure | None = None
    pool: Verdict | None = None


def service_status(
    service: InferenceService,
    before: Object,
    children: Children,
    wanted: int,
    trouble: Failure | None,
    now: str,
    scaling: Sequence[Verdict] = (),
) -> Status:
    """The whole status. `trouble` is what kept the operator from applying children; `now` as Kubernetes writes it;
    `scaling` is what the autoscaler says of itself."""
    verdicts = [
        ready_verdict(service, children, wanted, trouble),
        progressing_verdict(service, children, wanted, trouble),
        *(scaling or _scaling_verdicts(service, before)),
        *([children.pool] if children.pool else []),
    ]
    labels = selector_labels(service.name)
    return {
        **_counts(children.deployment),
        **_capacity(children),
        "desiredReplicas": wanted,
        "selector": ",".join(f"{k}={v}" for k, v in sorted(labels.items())),
        "url": f"http://{service.name}.{service.namespace}.svc",
        "observedGeneration": service.generation,
        "conditions": _conditions(_relevant(service, before), verdicts, service.generation, now),
    }


def _relevant(service: InferenceService, before: Object) -> Object:
    """The status without what only a scaled service has, or one with a pool, where this one is no such any more."""
    gone = {"ScalingLimited"} if service.autoscaling is None else set()
    gone |= {POOL_CONDITION} if service.endpoint_picker is None else set()
    return {**before, "conditions": [c for c in before.get("conditions") or [] if c["type"] not in gone]}


def invalid_status(error: ResourceError, resource: Object, deployment: Object | None, now: str) -> Status:
    """The status of a resource that cannot be understood; its children, if any, stay as they are."""
    is_name = all(p.field == "metadata.name" for p in error.problems)
    stays = "; the pods of the last valid version stay" if deployment is not None else ""
    reason = "InvalidName" if is_name else "InvalidSpec"
    verdicts = [Verdict(kind, False, reason, f"{error}{stays}") for kind in ("Ready", "Progressing")]
    generation = resource["metadata"].get("generation", 0)
    before = resource.get("status") or {}
    return {
        **_counts(deployment),
        "observedGeneration": generation,
        "conditions": _conditions(before, verdicts, generation, now),
    }


def changes(before: Object, after: Status) -> Status:
    """The part of `after` that differs from `before`: a merge patch; empty where nothing must be written."""
    return {k: v for k, v in after.items() if before.get(k) != v}


def ready_verdict(service: InferenceService, children: Children, wanted: int, trouble: Failure | None) -> Verdict:
    """Ready: enough replicas answer, and none of the current version fails.

    Where enough answer, one more that finds no room is no fault of the service: that is for Progressing to report.
    """
    if wanted == 0 and service.autoscaling is not None:
        return ASLEEP
    ready = _counts(children.deployment)["readyReplicas"]
    failure = _failure(service, children, trouble)
    return readiness(ready, wanted, _enough(service, wanted), failure)


def readiness(ready: int, wanted: int, enough: int, failure: Failure | None) -> Verdict:
    """Ready, from how many replicas answer, should, and suffice, and what is wrong; wherever they run."""
    serving = f"{ready} of {wanted} replicas serve"
    if wanted == 0:
        return Verdict("Ready", False, "ScaledToZero", "replicas is 0")
    if failure is not None and not (ready >= enough and failure.reason in _WHILE_SERVING):
        return Verdict("Ready", False, failure.reason, f"{failure.message}; {serving}" if ready else failure.message)
    if ready >= enough:
        return Verdict("Ready", True, "Ready", serving)
    return Verdict("Ready", False, "Starting", serving)


def _scaling_verdicts(service: InferenceService, before: Object) -> list[Verdict]:
    """ScalingActive as long as the autoscaler has not said anything; what it said before a restart stays until then."""
    if service.autoscaling is None:
        return [Verdict("ScalingActive", False, "FixedReplicas", "spec.replicas says how many")]
    if condition_of(before, "ScalingActive").get("reason") not in (None, "FixedReplicas"):
        return []
    return [Verdict("ScalingActive", False, "NoDecision", "no load has been measured yet")]


def progressing_verdict(service: InferenceService, children: Children, wanted: int, trouble: Failure | None) -> Verdict:
    """Progressing: what was asked for is not there yet, and nothing stands in the way."""
    deployment = children.deployment
    failure = _failure(service, children, trouble)
    if service.paused:
        return Verdict("Progressing", False, "Paused", "the operator leaves the children alone while it is paused")
    if failure is not None:
        is_going_on = failure.reason in (ONE_BY_ONE.reason, PREFETCHING.reason)
        return Verdict("Progressing", is_going_on, failure.reason, failure.message)
    if deployment is None:
        return Verdict("Progressing", True, "Starting", "the Deployment is being made")
    if is_one_by_one(service, deployment):
        return Verdict("Progressing", True, ONE_BY_ONE.reason, ONE_BY_ONE.message)
    if is_rolling(deployment):
        return Verdict("Progressing", True, "RollingOut", "pods of the new version replace the old ones")
    if _counts(deployment)["readyReplicas"] < wanted:
        return Verdict("Progressing", True, "Starting", "replicas are starting")
    return Verdict("Progressing", False, "Complete", "all replicas are as they should be")


def _failure(service: InferenceService, children: Children, trouble: Failure | None) -> Failure | None:
    """What is in the way. A new pod without a device is no fault any more once an old one makes room for it."""
    found = trouble or children.fetch or worst_failure(_current_pods(children), children.deployment)
    deployment = children.deployment
    if found and found.reason == "Unschedulable" and deployment and is_one_by_one(service, deployment):
        return ONE_BY_ONE
    return found


def _enough(service: InferenceService, wanted: int) -> int:
    """Ready replicas that make a service Ready: all of a fixed number; the least of a scaled one."""
    return max(1, min(wanted, service.autoscaling.min_replicas)) if service.autoscaling else wanted


def _current_pods(children: Children) -> list[Object]:
    """The pods of the version that is wanted now: what ails the ones it replaces is no matter any more."""
    if children.deployment is None:
        return list(children.pods)
    return [p for p in children.pods if is_current(p, children.deployment)]


def _counts(deployment: Object | None) -> dict[str, int]:
    status = (deployment or {}).get("status", {})
    return {"replicas": status.get("replicas", 0), "readyReplicas": status.get("readyReplicas", 0)}


def _capacity(children: Children) -> Status:
    """What is known stays until it is known better; nothing is left where nothing is ready."""
    if not any(map(is_ready, children.pods)):
        return {"capacity": None}
    if children.capacity is None:
        return {}
    return {
        "capacity": {
            "kvTokens": children.capacity.kv_tokens,
            "maxConcurrency": children.capacity.max_concurrency,
        }
    }


def _conditions(before: Object, verdicts: Sequence[Verdict], generation: int, now: str) -> list[Status]:
    """Verdicts as conditions, each since when its status is so; conditions of others stay."""
    known = {c["type"]: c for c in before.get("conditions") or []}
    made = {v.type: _condition(known.get(v.type, {}), v, generation, now) for v in verdicts}
    return list({**known, **made}.values())


def _condition(before: Object, verdict: Verdict, generation: int, now: str) -> Status:
    status = str(verdict.holds)
    since = before["lastTransitionTime"] if before.get("status") == status else now
    return {
        "type": verdict.type,
        "status": status,
        "reason": verdict.reason,
        "message": verdict.message[:_MESSAGE_LENGTH],
        "lastTransitionTime": since,
        "observedGeneration": generation,
    }


def condition_of(status: Object, kind: str) -> Object:
    """The condition of that type, or an empty one."""
    return next((c for c in status.get("conditions") or [] if c["type"] == kind), {})
