"""The pod template of a service: pure, from InferenceService and the operator's default image."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pagetide_spec.flags import env_of, to_arguments
from pagetide_spec.inference_service import InferenceService, SecretKey
from pagetide_spec.names import (
    ANNOTATION_TEMPLATE_HASH,
    CONTAINER_SERVER,
    FIELD_MANAGER,
    LABEL_INSTANCE,
    LABEL_MANAGED_BY,
    PATH_LIVE,
    PATH_READY,
    PORT_NAME,
    SERVER_PORT,
    selector_labels,
)

from .merge import merged

Manifest = dict[str, Any]

MODELS_PATH = "/models"
CACHE_PATH = "/cache"
# Anybody but root; images need not know the number, since all that is written lies in volumes.
USER_ID = 10001
# Between "this pod goes away" and the last Service proxy's and gateway's knowing it.
PRE_STOP_SECONDS = 5
# After the server's own timeout it still ends its engine process.
EXIT_SECONDS = 10
STARTUP_PERIOD = 2

_POD_LEVEL = (
    "nodeSelector",
    "tolerations",
    "affinity",
    "topologySpreadConstraints",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "imagePullSecrets",
    "securityContext",
    "volumes",
    "initContainers",
    "containers",
    "hostNetwork",
    "hostIPC",
    "dnsPolicy",
)
_CONTAINER_LEVEL = ("env", "envFrom", "volumeMounts")


def labels_of(service: InferenceService) -> dict[str, str]:
    """Labels of every child of a service."""
    return selector_labels(service.name) | {LABEL_INSTANCE: service.name, LABEL_MANAGED_BY: FIELD_MANAGER}


def pod_template(service: InferenceService, default_image: str) -> Manifest:
    """`spec.template` of the Deployment. The hash in it distinguishes pods of this template from older ones."""
    given = service.template
    spec = merged(_pod_spec(service, default_image), {k: given[k] for k in _POD_LEVEL if k in given})
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        container["resources"] = quantities(container.get("resources") or {})
    annotations = dict(given.get("annotations", {}))
    labels = {**given.get("labels", {}), **labels_of(service)}
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}
    annotations[ANNOTATION_TEMPLATE_HASH] = digest(template)
    return template


def quantities(resources: Mapping[str, Any]) -> Manifest:
    """Resources with every amount as text: server-side apply before Kubernetes 1.22 takes no number there."""
    texts = {k: {n: str(v) for n, v in resources[k].items()} for k in ("limits", "requests") if resources.get(k)}
    return {k: v for k, v in {**resources, **texts}.items() if v is not None}


def digest(value: Any) -> str:
    """A short hash of plain data; equal data, equal hash, in every process."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def shutdown_seconds(service: InferenceService) -> float:
    """How long the server waits for running requests after SIGTERM."""
    return float(service.engine.get("shutdown_timeout_s", service.drain_seconds))


def grace_seconds(service: InferenceService) -> int:
    """The pod's terminationGracePeriodSeconds: draining, the server's own shutdown, and a margin."""
    return PRE_STOP_SECONDS + service.drain_seconds + round(shutdown_seconds(service)) + EXIT_SECONDS


def model_argument(service: InferenceService) -> str:
    """The model as the server in the container finds it."""
    model = service.model
    if model.scheme == "pvc":
        return f"{MODELS_PATH}/{model.path}".rstrip("/")
    return model.path


def server_settings(service: InferenceService) -> dict[str, Any]:
    """EngineConfig field names to values, wherever the server runs."""
    return {
        **service.engine,
        "served_model_name": service.model.served_name,
        "revision": service.model.revision,
        "shutdown_timeout_s": shutdown_seconds(service),
    }


def arguments(service: InferenceService) -> list[str]:
    """The server's command line."""
    return [model_argument(service), *to_arguments({**server_settings(service), "port": SERVER_PORT})]


def _pod_spec(service: InferenceService, default_image: str) -> Manifest:
    return {
        "serviceAccountName": service.template.get("serviceAccountName", service.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_seconds(service),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(service, default_image)],
        "volumes": _volumes(service),
    }


def _container(service: InferenceService, default_image: str) -> Manifest:
    given = service.template
    base: Manifest = {
        "name": CONTAINER_SERVER,
        "image": service.image or default_image,
        "args": arguments(service),
        "ports": [{"name": PORT_NAME, "containerPort": SERVER_PORT, "protocol": "TCP"}],
        "env": _environment(service),
        "resources": dict(service.resources),
        "volumeMounts": _mounts(service),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(PRE_STOP_SECONDS)]}}},
        # The end of the log of a crashed server becomes part of the pod's status, and so of the service's.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        **_probes(service.startup_seconds),
    }
    if service.image_pull_policy:
        base["imagePullPolicy"] = service.image_pull_policy
    patch = {k: given[k] for k in _CONTAINER_LEVEL if k in given}
    if "containerSecurityContext" in given:
        patch["securityContext"] = given["containerSecurityContext"]
    merged_container: Manifest = merged(base, patch)
    return merged_container


def _probes(startup_seconds: int) -> Manifest:
    """A long patience while the model loads, a short one afterwards."""
    return {
        "startupProbe": {
            **_get(PATH_READY),
            "periodSeconds": STARTUP_PERIOD,
            "timeoutSeconds": 5,
            "failureThreshold": -(-startup_seconds // STARTUP_PERIOD),
        },
        "readinessProbe": {**_get(PATH_READY), "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {**_get(PATH_LIVE), "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6},
    }


def _get(path: str) -> Manifest:
    return {"httpGet": {"path": path, "port": PORT_NAME, "scheme": "HTTP"}}


def _environment(service: InferenceService) -> list[Manifest]:
    """Every cache and scratch folder lies in a volume, since the root file system is read-only."""
    out: list[Manifest] = [
        {"name": "HOME", "value": "/tmp"},
        {"name": "HF_HOME", "value": f"{CACHE_PATH}/huggingface"},
        {"name": "XDG_CACHE_HOME", "value": CACHE_PATH},
        {"name": "PAGETIDE_CACHE", "value": f"{CACHE_PATH}/pagetide"},
        {"name": "TRITON_CACHE_DIR", "value": f"{CACHE_PATH}/triton"},
        {"name": "TORCHINDUCTOR_CACHE_DIR", "value": f"{CACHE_PATH}/inductor"},
    ]
    if service.model.token_secret:
        out.append(_from_secret("HF_TOKEN", service.model.token_secret))
    if service.api_key_secret:
        out.append(_from_secret(env_of("api_key"), service.api_key_secret))
    return out


def _from_secret(name: str, secret: SecretKey) -> Manifest:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}}}


def _volumes(service: InferenceService) -> list[Manifest]:
    out: list[Manifest] = [
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "cache", **_cache_source(service)},
    ]
    if service.model.claim:
        out.append({"name": "models", "persistentVolumeClaim": {"claimName": service.model.claim, "readOnly": True}})
    return out


def _cache_source(service: InferenceService) -> Mapping[str, Any]:
    claim = cache_claim(service)
    return {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}


def cache_claim(service: InferenceService) -> str | None:
    """Name of the claim that holds the model cache, or None."""
    if service.cache is None:
        return None
    return service.cache.pvc or f"{service.name}-cache"


def _mounts(service: InferenceService) -> list[Manifest]:
    out: list[Manifest] = [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "cache", "mountPath": CACHE_PATH},
    ]
    if service.model.claim:
        out.append({"name": "models", "mountPath": MODELS_PATH, "readOnly": True})
    return out
