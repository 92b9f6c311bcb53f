"""The Job that fetches a model from the hub into the cache, before any replica holds a GPU for it. Pure.

A Deployment is made, or given a new version, once the Job has completed, and notes what was fetched; the Job is then
deleted. As long as that note is right, no Job runs again, whatever else of the service changes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pagetide_spec.flags import to_arguments
from pagetide_spec.inference_service import InferenceService
from pagetide_spec.names import (
    ANNOTATION_PREFETCHED,
    ANNOTATION_TEMPLATE_HASH,
    COMPONENT_PREFETCH,
    CONTAINER_SERVER,
    FIELD_MANAGER,
    FLAG_DOWNLOAD_ONLY,
    LABEL_COMPONENT,
    LABEL_INSTANCE,
    LABEL_MANAGED_BY,
    LABEL_PREFETCH,
    LABEL_SERVICE,
)

from .desired.children import Platform, head
from .desired.pod import Manifest, cache_claim, digest, model_argument, pod_template
from .desired.version import NOTHING_TO_FETCH, Fetching, annotations_of, kept_template, noted_template
from .verdicts.failures import Failure, pod_failures
from .verdicts.status import PREFETCHING

Object = Mapping[str, Any]

# A failed try comes again, later each time, five minutes at most; a Secret that is made meanwhile ends the row.
TRIES = 10_000
# Downloading takes little; the rest of the memory is the page cache, which the kernel takes back.
RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "4Gi"}}
_PREFIX_LENGTH = 44
_OF_SERVERS = ("ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle")
_CRASHES = ("CrashLoopBackOff", "OOMKilled")


def fetch_key(service: InferenceService) -> str | None:
    """What the cache must hold for a service, hashed; None where nothing is fetched beforehand."""
    cache, model = service.cache, service.model
    if cache is None or not cache.prefetch or model.scheme != "hf":
        return None
    tokenizer = service.engine.get("tokenizer")
    return digest([model.path, model.revision, tokenizer, cache_claim(service), cache.size, cache.storage_class])


def fetching_of(
    service: InferenceService, platform: Platform, live: Object | None, children: Sequence[Object]
) -> Fetching:
    """How far the model is, from the live Deployment and the other live children."""
    key = fetch_key(service)
    if key is None:
        return NOTHING_TO_FETCH
    if is_noted(service, key, live):
        return Fetching(key)
    job = job_for(service, platform, is_placed=_is_placed(service, children))
    found = _named(children, job["metadata"]["name"])
    # A Deployment whose notes are lost cannot be left as it is: its pods then fetch for themselves.
    is_lost = live is not None and noted_template(live) is None
    return Fetching(key, is_lost or has_condition(found, "Complete"), job)


def is_noted(service: InferenceService, key: str, live: Object | None) -> bool:
    """Whether the Deployment's pods were made for this model: by the note, or as this very spec has them."""
    return annotations_of(live).get(ANNOTATION_PREFETCHED) == key or kept_template(service, live) is not None


def job_for(service: InferenceService, platform: Platform, *, is_placed: bool) -> Manifest:
    """The Job; its name distinguishes tries of a spec. `is_placed`: it is known which node has the volume."""
    template = _template(service, platform)
    name = f"{service.name[:_PREFIX_LENGTH]}-{COMPONENT_PREFETCH}-{digest([service.name, template])[:8]}"
    if not is_placed:  # where the volume comes to lie, a server with its devices must have room, too
        _container(template)["resources"] = _with_devices(service)
    out = head("batch/v1", "Job", service, name)
    out["metadata"]["labels"] |= {LABEL_COMPONENT: COMPONENT_PREFETCH}
    return {**out, "spec": {"backoffLimit": TRIES, "template": template}}


def fetch_state(
    service: InferenceService, live: Object | None, children: Sequence[Object], pods: Iterable[Object]
) -> Failure | None:
    """That the model is being fetched, or what keeps it from being; None where there is nothing to wait for."""
    key = fetch_key(service)
    jobs = [c for c in children if c["kind"] == "Job" and not has_condition(c, "Complete")]
    if key is None or not jobs or is_noted(service, key, live):
        return None
    found = [_told(f) for pod in pods for f in pod_failures(pod, may_end=True)]
    over = (j["metadata"]["name"] for j in jobs if has_condition(j, "Failed"))
    found += [Failure("PrefetchFailed", f"Job {name} failed; delete it for another try") for name in over]
    return min(found, key=lambda f: f.message, default=PREFETCHING)


def has_condition(job: Object | None, kind: str) -> bool:
    """Whether a Job is Complete, or Failed."""
    conditions = (job or {}).get("status", {}).get("conditions") or []
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


def _told(failure: Failure) -> Failure:
    reason = "PrefetchFailed" if failure.reason in _CRASHES else failure.reason
    return Failure(reason, f"fetching the model: {failure.message}")


def _template(service: InferenceService, platform: Platform) -> Manifest:
    """A server's pod without what it needs for serving: same image, account, volumes, secrets and choice of nodes."""
    out = copy.deepcopy(pod_template(service, platform.image))
    container = _container(out)
    for field in _OF_SERVERS:
        container.pop(field, None)
    settings = {"revision": service.model.revision, "tokenizer": service.engine.get("tokenizer")}
    container["args"] = [model_argument(service), *to_arguments(settings), FLAG_DOWNLOAD_ONLY]
    container["resources"] = copy.deepcopy(RESOURCES)
    labels = out["metadata"]["labels"]
    del labels[LABEL_SERVICE]
    labels |= {LABEL_COMPONENT: COMPONENT_PREFETCH, LABEL_PREFETCH: service.name}
    del out["metadata"]["annotations"][ANNOTATION_TEMPLATE_HASH]  # of settings that are no matter here
    out["spec"] |= {"containers": [container], "restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 10}
    if service.cache is not None and service.cache.size is not None:
        out["spec"]["affinity"] = _beside_servers(service, out["spec"].get("affinity") or {})
    return out


def _container(template: Manifest) -> Manifest:
    found: Manifest = next(c for c in template["spec"]["containers"] if c["name"] == CONTAINER_SERVER)
    return found


def _beside_servers(service: InferenceService, affinity: Mapping[str, Any]) -> Manifest:
    """On the node of the pods that have mounted the claim, as no other can; anywhere while there is none.

    The Job's own pod has these labels as well: Kubernetes takes such a pod as the first of its kind.
    """
    ours = {LABEL_MANAGED_BY: FIELD_MANAGER, LABEL_INSTANCE: service.name}
    term = {"labelSelector": {"matchLabels": ours}, "topologyKey": "kubernetes.io/hostname"}
    required, pods = "requiredDuringSchedulingIgnoredDuringExecution", affinity.get("podAffinity") or {}
    return {**affinity, "podAffinity": {**pods, required: [*(pods.get(required) or []), term]}}


def _with_devices(service: InferenceService) -> Manifest:
    """The Job's own needs and the server's devices (extended resources have a slash in their names)."""
    out = copy.deepcopy(RESOURCES)
    for part in ("requests", "limits"):
        given = service.resources.get(part) or {}
        out[part] |= {name: str(amount) for name, amount in given.items() if "/" in name}
    return out


def _is_placed(service: InferenceService, children: Sequence[Object]) -> bool:
    """Whether the claim belongs to another owner, or has its volume."""
    if service.cache is None or service.cache.size is None:
        return True
    claim = next((c for c in children if c["kind"] == "PersistentVolumeClaim"), {})
    return bool(claim.get("status", {}).get("phase") == "Bound")


def _named(children: Sequence[Object], name: str) -> Object | None:
    return next((c for c in children if c["kind"] == "Job" and c["metadata"]["name"] == name), None)
