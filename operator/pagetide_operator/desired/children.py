"""Desired state: which children an InferenceService has, as manifests. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pagetide_spec.inference_service import EndpointPicker, InferenceService, Rollout
from pagetide_spec.names import (
    ANNOTATION_APPLIED,
    ANNOTATION_FINGERPRINT,
    ANNOTATION_PREFETCHED,
    ANNOTATION_TEMPLATE,
    API_VERSION,
    KIND,
    LABEL_SCRAPED,
    PATH_METRICS,
    PORT_NAME,
    SERVER_PORT,
    headless_name,
    selector_labels,
)

from ..cluster.kinds import MONITOR, POOL
from .pod import Manifest, digest, labels_of
from .version import NOTHING_TO_FETCH, Fetching, Version, version_of

SERVICE_PORT = 80
# On one of the two Services only, lest Prometheus scrape each pod twice.
SCRAPED = {LABEL_SCRAPED: "true"}
# Beyond the time that a model may take to load, before a rollout counts as stuck.
PROGRESS_MARGIN_SECONDS = 120
SURGE_PATIENCE_SECONDS = 30.0
ONE_AT_A_TIME = Rollout(max_surge=0, max_unavailable=1)


@dataclasses.dataclass(frozen=True)
class Platform:
    """What the operator's options and the cluster's discovery say, the same for all services.

    Attributes:
        image: the server's image where a service names none.
        budget_version: apiVersion of PodDisruptionBudget here (policy/v1beta1 before Kubernetes 1.21).
        has_eviction_policy: whether a PodDisruptionBudget may let go of pods that are not ready (Kubernetes 1.27).
        has_service_monitors: whether the Prometheus operator's ServiceMonitor exists here.
        has_inference_pools: whether Gateway API Inference Extension's InferencePool exists here.
        surge_patience: seconds that a surge pod may wait for a device before an old pod must go first.
    """

    image: str
    budget_version: str = "policy/v1"
    has_eviction_policy: bool = False
    has_service_monitors: bool = False
    has_inference_pools: bool = False
    surge_patience: float = SURGE_PATIENCE_SECONDS


def children(
    service: InferenceService,
    platform: Platform,
    replicas: int,
    rollout: Rollout,
    live: Mapping[str, Any] | None,
    fetching: Fetching = NOTHING_TO_FETCH,
) -> list[Manifest]:
    """The manifests of all children, in the order in which they are to be applied.

    `live` is the Deployment as it stands: where the service is the one that its pods were made for, they keep their
    template, whatever this version of the operator would write, so that an upgrade restarts nothing. While the model
    is being fetched they keep it, too, or are not made yet.
    """
    version = version_of(service, platform.image, live, fetching)
    out = [
        *_of_pods(service, fetching),
        _service(service, service.name, {}),
        _service(service, headless_name(service.name), {"clusterIP": "None"}),
        *([_deployment(service, version, replicas, rollout)] if version is not None else []),
        _budget(service, platform),
    ]
    if platform.has_service_monitors:
        out.append(_monitor(service))
    if platform.has_inference_pools and service.endpoint_picker is not None:
        out.append(_pool(service, service.endpoint_picker))
    return [stamped(child) for child in out]


def _of_pods(service: InferenceService, fetching: Fetching) -> Iterator[Manifest]:
    """What must be there before pods: their account, their cache, and what fills it."""
    if "serviceAccountName" not in service.template:
        yield {**head("v1", "ServiceAccount", service, service.name), "automountServiceAccountToken": False}
    if service.cache is not None and service.cache.size is not None:
        yield _claim(service)
    if fetching.job is not None:
        yield fetching.job


def wanted_replicas(service: InferenceService, status: Mapping[str, Any]) -> int:
    """How many replicas there should be: fixed, or what the autoscaler last wrote into status, within the bounds.

    The status is the autoscaler's memory: it survives a restart of the operator.
    """
    if service.replicas is not None:
        return service.replicas
    scaling = service.autoscaling
    if scaling is None:
        raise ValueError("a service without replicas has autoscaling")
    decided: int = status.get("desiredReplicas", max(1, scaling.min_replicas))
    return min(max(decided, scaling.min_replicas), scaling.max_replicas)


def owner_reference(service: InferenceService) -> Manifest:
    """What makes Kubernetes delete a child with its service."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": service.name,
        "uid": service.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def key_of(manifest: Mapping[str, Any]) -> tuple[str, str]:
    """(kind, name): what identifies a child among those of one service."""
    return manifest["kind"], manifest["metadata"]["name"]


def stamped(child: Manifest) -> Manifest:
    """`child` with the hash of itself: what was applied from something else must be applied again."""
    annotations = child["metadata"].setdefault("annotations", {})
    annotations[ANNOTATION_APPLIED] = digest(child)
    return child


def head(api_version: str, kind: str, service: InferenceService, name: str) -> Manifest:
    """What every child has: its names, labels and owner."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": service.namespace,
            "labels": labels_of(service),
            "ownerReferences": [owner_reference(service)],
        },
    }


def _deployment(service: InferenceService, version: Version, replicas: int, rollout: Rollout) -> Manifest:
    out = head("apps/v1", "Deployment", service, service.name)
    out["metadata"]["annotations"] = {
        ANNOTATION_FINGERPRINT: version.fingerprint,
        ANNOTATION_TEMPLATE: json.dumps(version.template, sort_keys=True),
        **({ANNOTATION_PREFETCHED: version.fetched} if version.fetched else {}),
    }
    out["spec"] = {
        "replicas": replicas,
        "selector": {"matchLabels": selector_labels(service.name)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable},
        },
        "progressDeadlineSeconds": service.startup_seconds + PROGRESS_MARGIN_SECONDS,
        "revisionHistoryLimit": 5,
        "template": version.template,
    }
    return out


def _service(service: InferenceService, name: str, more: Manifest) -> Manifest:
    headless = more.get("clusterIP") == "None"
    port = {
        "name": PORT_NAME,
        "port": SERVER_PORT if headless else SERVICE_PORT,
        "protocol": "TCP",
        "targetPort": PORT_NAME,
    }
    out = head("v1", "Service", service, name)
    if headless:
        out["metadata"]["labels"] |= SCRAPED
    return {**out, "spec": {"selector": selector_labels(service.name), "ports": [port], **more}}


def _budget(service: InferenceService, platform: Platform) -> Manifest:
    spec: Manifest = {"maxUnavailable": 1, "selector": {"matchLabels": selector_labels(service.name)}}
    if platform.has_eviction_policy:  # else a crash loop keeps its node from being drained
        spec["unhealthyPodEvictionPolicy"] = "AlwaysAllow"
    return {**head(platform.budget_version, "PodDisruptionBudget", service, service.name), "spec": spec}


def _claim(service: InferenceService) -> Manifest:
    if service.cache is None:
        raise ValueError("no cache was asked for")
    spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": service.cache.size}},
    }
    if service.cache.storage_class is not None:
        spec["storageClassName"] = service.cache.storage_class
    return {**head("v1", "PersistentVolumeClaim", service, f"{service.name}-cache"), "spec": spec}


def _monitor(service: InferenceService) -> Manifest:
    # Dashboards know a service by its own name, not by that of the Service through which it is found.
    named = {"targetLabel": "service", "replacement": service.name}
    endpoint = {"port": PORT_NAME, "path": PATH_METRICS, "interval": "15s", "relabelings": [named]}
    spec = {"selector": {"matchLabels": {**selector_labels(service.name), **SCRAPED}}, "endpoints": [endpoint]}
    return {**head(MONITOR.versions[0], MONITOR.name, service, service.name), "spec": spec}


def _pool(service: InferenceService, picker: EndpointPicker) -> Manifest:
    spec = {
        "selector": {"matchLabels": selector_labels(service.name)},
        "targetPorts": [{"number": SERVER_PORT}],
        "endpointPickerRef": {
            "name": picker.name,
            "port": {"number": picker.port},
            "failureMode": picker.failure_mode,
        },
    }
    return {**head(POOL.versions[0], POOL.name, service, service.name), "spec": spec}
