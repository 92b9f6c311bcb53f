"""The kinds of objects that the operator reads and writes, and their addresses at the API server."""

from __future__ import annotations

import dataclasses

from pagetide_spec.names import API_VERSION, FIELD_MANAGER, KIND, LABEL_MANAGED_BY, PLURAL

# Every child carries it, pods as well; nothing else is listed or watched.
CHILD_SELECTOR = f"{LABEL_MANAGED_BY}={FIELD_MANAGER}"


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind. `is_watched`: its changes are events; others are only seen by the relist."""

    name: str
    plural: str
    versions: tuple[str, ...]
    is_watched: bool = True


RESOURCE = Kind(KIND, PLURAL, (API_VERSION,))
# Newest first; the first version that the cluster has is taken.
CHILDREN = (
    Kind("Deployment", "deployments", ("apps/v1",)),
    Kind("Pod", "pods", ("v1",)),
    Kind("Service", "services", ("v1",)),
    Kind("ServiceAccount", "serviceaccounts", ("v1",)),
    Kind("PersistentVolumeClaim", "persistentvolumeclaims", ("v1",)),
    Kind("Job", "jobs", ("batch/v1",)),
    Kind("PodDisruptionBudget", "poddisruptionbudgets", ("policy/v1", "policy/v1beta1")),
)
MONITOR = Kind("ServiceMonitor", "servicemonitors", ("monitoring.coreos.com/v1",), is_watched=False)
POOL = Kind("InferencePool", "inferencepools", ("inference.networking.k8s.io/v1",), is_watched=False)
OPTIONAL = (MONITOR, POOL)
BY_NAME = {k.name: k for k in (RESOURCE, *CHILDREN, *OPTIONAL)}


def group_path(api_version: str) -> str:
    """`apps/v1` -> `/apis/apps/v1`; `v1` -> `/api/v1`."""
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def collection_path(api_version: str, plural: str, namespace: str | None) -> str:
    """Address of all objects of a kind, in one namespace or in all."""
    inside = f"/namespaces/{namespace}" if namespace else ""
    return f"{group_path(api_version)}{inside}/{plural}"
