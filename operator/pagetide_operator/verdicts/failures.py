"""What keeps pods from running, in words that a person can act on. Pure.

Texts hold nothing that changes while the fault stays the same (back-off times, counts of restarts): a text that
changes is a status written, an event, and the next pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pagetide_spec.conditions import crash_text

Object = Mapping[str, Any]

_IMAGE = {"ErrImagePull": "ImagePullBackOff", "ImagePullBackOff": "ImagePullBackOff"}
_CONFIG = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "InvalidImageName"}
# The worst first: what no waiting will mend.
REASONS = (
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "ImagePullBackOff",
    "OOMKilled",
    "CrashLoopBackOff",
    "PrefetchFailed",
    "ProgressDeadlineExceeded",
    "QuotaExceeded",
    "FailedCreate",
    "VolumePending",
    "Unschedulable",
)
# A pod that cannot come to be says nothing against those that serve.
OF_PODS_TO_COME = frozenset(("PrefetchFailed", "QuotaExceeded", "FailedCreate", "VolumePending", "Unschedulable"))
_LOG_LINE = 300


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a child does not come up."""

    reason: str
    message: str


def worst_failure(pods: Iterable[Object], deployment: Object | None) -> Failure | None:
    """The gravest failure among pods and their Deployment; the same one as long as the state is the same."""
    found = [f for pod in pods for f in pod_failures(pod)] + list(deployment_failures(deployment or {}))
    return min(found, key=lambda f: (REASONS.index(f.reason), f.message), default=None)


def deployment_failures(deployment: Object) -> Iterator[Failure]:
    """Pods that cannot even be created, and a rollout that takes longer than any load may."""
    for condition in deployment.get("status", {}).get("conditions") or []:
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            message = condition.get("message", "")
            yield Failure("QuotaExceeded" if "exceeded quota" in message else "FailedCreate", message)
        if condition["type"] == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded":
            yield Failure("ProgressDeadlineExceeded", "pods were not ready within startupSeconds")


def pod_failures(pod: Object, *, may_end: bool = False) -> Iterator[Failure]:
    """All that is wrong with one pod. `may_end`: to end with exit code 0 is what it is there for."""
    if "deletionTimestamp" in pod["metadata"]:
        return
    status = pod.get("status", {})
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            yield _unscheduled(condition.get("message", ""))
    for container in status.get("initContainerStatuses") or []:
        yield from _container_failures(container, may_end=True)
    for container in status.get("containerStatuses") or []:
        yield from _container_failures(container, may_end=may_end)


def _unscheduled(message: str) -> Failure:
    is_volume = "persistentvolumeclaim" in message.lower()
    return Failure("VolumePending" if is_volume else "Unschedulable", message)


def _container_failures(container: Object, *, may_end: bool) -> Iterator[Failure]:
    """`may_end`: to end with exit code 0 is what the container is there for."""
    state, last = container.get("state", {}), container.get("lastState", {})
    waiting = state.get("waiting", {})
    reason = waiting.get("reason", "")
    if reason in _IMAGE:
        yield Failure(_IMAGE[reason], f"image {container.get('image')!r} cannot be pulled")
    elif reason in _CONFIG:
        yield Failure(reason, f"container {container['name']}: {waiting.get('message', reason)}")
    elif not container.get("ready") and (ended := _ended(state, may_end) or _ended(last, may_end)):
        yield _crash(container["name"], ended)


def _ended(state: Object, may_end: bool) -> Mapping[str, Any] | None:
    """How a container exited, if it should not have."""
    ended: Mapping[str, Any] = state.get("terminated") or {}
    is_fine = may_end and ended.get("exitCode") == 0 and ended.get("reason") != "OOMKilled"
    return None if is_fine or not ended else ended


def _crash(name: str, ended: Mapping[str, Any]) -> Failure:
    if ended.get("reason") == "OOMKilled":
        return Failure("OOMKilled", f"container {name} took more memory than its limit")
    lines = [line for line in ended.get("message", "").splitlines() if line.strip()]
    last = lines[-1].strip()[:_LOG_LINE] if lines else ""
    return Failure("CrashLoopBackOff", crash_text(name, ended.get("exitCode"), last))
