"""What InferenceServices and their pods mean for the gateway. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from pagetide_spec.conditions import INVALID, needs_change
from pagetide_spec.names import ANNOTATION_DRAINING, LABEL_SERVICE, SERVER_PORT

_MESSAGE_LENGTH = 600


@dataclasses.dataclass(frozen=True)
class ServiceView:
    """One InferenceService. `may_wake`: its replicas come with demand, so that it is worth waiting for one.

    `broken`: why none will come until somebody changes it; where it `is_invalid`, those it has already may yet serve.
    """

    namespace: str
    name: str
    served: str
    may_wake: bool
    broken: str = ""
    is_invalid: bool = False

    @property
    def key(self) -> str:
        """Unique in the cluster."""
        return f"{self.namespace}/{self.name}"


@dataclasses.dataclass(frozen=True)
class PodView:
    """One pod of a service that has an address. `service` is the service's key."""

    service: str
    name: str
    url: str
    is_ready: bool
    is_draining: bool


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What the registry is to hold of one service."""

    service: ServiceView
    replicas: Mapping[str, str]
    draining: frozenset[str]
    unready: frozenset[str]
    broken: str = ""


def service_view(resource: Mapping[str, Any]) -> ServiceView:
    """An InferenceService as the API server has it; a wrong one has no pods, and is listed all the same."""
    metadata, spec = resource["metadata"], _mapping(resource.get("spec"))
    served = _mapping(spec.get("model")).get("servedName")
    reason, broken = _broken(resource)
    return ServiceView(
        metadata["namespace"],
        metadata["name"],
        served if isinstance(served, str) and served else metadata["name"],
        may_wake=isinstance(spec.get("autoscaling"), Mapping),
        broken=broken,
        is_invalid=reason in INVALID,
    )


def _broken(resource: Mapping[str, Any]) -> tuple[str, str]:
    """The reason for which a service is not Ready, and what to report of it, where no waiting helps; else nothing.

    What the operator said of an earlier state of the service does not count.
    """
    metadata = resource["metadata"]
    conditions = _mapping(resource.get("status")).get("conditions") or []
    ready: Mapping[str, Any] = next((c for c in conditions if c.get("type") == "Ready"), {})
    reason, message = str(ready.get("reason")), str(ready.get("message"))
    is_old = ready.get("observedGeneration") != metadata.get("generation")
    if ready.get("status") != "False" or is_old or not needs_change(reason, message):
        return "", ""
    where = f"kubectl -n {metadata['namespace']} describe pgt/{metadata['name']}"
    return reason, f"{reason}: {message[:_MESSAGE_LENGTH]} (see: {where})"


def pod_view(pod: Mapping[str, Any]) -> PodView | None:
    """A pod as the API server has it; None where it cannot have requests, now or soon."""
    metadata, status = pod["metadata"], _mapping(pod.get("status"))
    address, service = status.get("podIP"), _mapping(metadata.get("labels")).get(LABEL_SERVICE)
    if not address or not service or status.get("phase") in ("Succeeded", "Failed"):
        return None
    host = f"[{address}]" if ":" in address else address
    conditions = status.get("conditions") or []
    return PodView(
        f"{metadata['namespace']}/{service}",
        metadata["name"],
        f"http://{host}:{SERVER_PORT}",
        is_ready=any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions),
        is_draining=bool(metadata.get("deletionTimestamp"))
        or ANNOTATION_DRAINING in _mapping(metadata.get("annotations")),
    )


def wanted(services: Iterable[ServiceView], pods: Iterable[PodView]) -> list[Wanted]:
    """Every service with its pods; pods of no service (it was just deleted) are left out."""
    of: dict[str, list[PodView]] = {}
    for pod in pods:
        of.setdefault(pod.service, []).append(pod)
    return [
        Wanted(
            service,
            {pod.name: pod.url for pod in of.get(service.key, ())},
            frozenset(pod.name for pod in of.get(service.key, ()) if pod.is_draining),
            frozenset(pod.name for pod in of.get(service.key, ()) if not pod.is_ready),
            _why_none_comes(service, of.get(service.key, ())),
        )
        for service in sorted(services, key=lambda s: s.key)
    ]


def _why_none_comes(service: ServiceView, pods: Iterable[PodView]) -> str:
    may_serve = service.is_invalid and not all(pod.is_draining for pod in pods)
    return "" if may_serve else service.broken


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
