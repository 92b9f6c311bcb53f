"""How fast a Deployment may replace its pods: as the resource says, or one by one where there is no spare GPU. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pagetide_spec.inference_service import InferenceService, Rollout

from ..cluster.times import seconds_of
from ..desired.children import ONE_AT_A_TIME

Object = Mapping[str, Any]


def choose_rollout(
    service: InferenceService, deployment: Object | None, pods: Iterable[Object], patience: float, now: float
) -> Rollout:
    """The rollout to ask for at `now` (seconds since the epoch).

    Where a pod of the new version has waited `patience` seconds for a device that old ones hold, old ones must go
    first. It stays so until the rollout is over.
    """
    if deployment is None:
        return service.rollout
    since = waits_for_device(deployment, pods)
    is_blocked = since is not None and now - since >= patience
    if is_blocked or (is_one_by_one(service, deployment) and is_rolling(deployment)):
        return ONE_AT_A_TIME
    return service.rollout


def waits_for_device(deployment: Object, pods: Iterable[Object]) -> float | None:
    """Since when a new pod waits for a device while old pods run, or None."""
    alive = [p for p in pods if "deletionTimestamp" not in p["metadata"]]
    if all(is_current(p, deployment) for p in alive):
        return None
    waiting = [t for p in alive if is_current(p, deployment) and (t := _unscheduled_since(p)) is not None]
    return min(waiting, default=None)


def is_one_by_one(service: InferenceService, deployment: Object) -> bool:
    """Whether the Deployment stands at the fallback, though the service asks for something else."""
    rolling = deployment["spec"].get("strategy", {}).get("rollingUpdate", {})
    found = Rollout(rolling.get("maxSurge", 1), rolling.get("maxUnavailable", 0))
    return found == ONE_AT_A_TIME != service.rollout


def is_rolling(deployment: Object) -> bool:
    """Whether pods of an older template remain, or the Deployment's controller has not looked yet."""
    status = deployment.get("status", {})
    if status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 0):
        return True
    return bool(status.get("replicas", 0) != status.get("updatedReplicas", 0))


def is_current(pod: Object, deployment: Object) -> bool:
    """Whether a pod was made from the Deployment's present template.

    By all annotations of the template: our hash is among them, and so is what `kubectl rollout restart` leaves there.
    """
    wanted = deployment["spec"]["template"].get("metadata", {}).get("annotations") or {}
    found = pod.get("metadata", {}).get("annotations") or {}
    return bool(wanted.items() <= found.items())


def _unscheduled_since(pod: Object) -> float | None:
    for condition in pod.get("status", {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            # Devices are extended resources, whose names have a slash: `Insufficient nvidia.com/gpu`.
            words = condition.get("message", "").partition("Insufficient ")[2].split(maxsplit=1)
            if words and "/" in words[0] and condition.get("lastTransitionTime"):
                return seconds_of(condition["lastTransitionTime"])
    return None
