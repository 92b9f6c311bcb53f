"""InferenceService as data: `parse` takes a manifest to dataclasses, or says everything that is wrong with it.

One check for all: the operator runs it on what the API server let through, the local runner on a file.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from .config import EngineConfig
from .envelope import envelope_problems, name_problems
from .errors import ResourceError, SettingError
from .flags import camel_of, camel_to_snake
from .inference_service import (
    Autoscaling,
    Cache,
    EndpointPicker,
    InferenceService,
    ModelSource,
    Policy,
    Rollout,
    ScalingRules,
    SecretKey,
)
from .names import ANNOTATION_PAUSED
from .rules import SIZE_PATTERN
from .schema import Schema, spec_schema
from .validation import problems_of, unknown_fields, validator_of, with_defaults, without_defaults

_NOT_ABOUT_PODS = {"replicas", "autoscaling", "rollout", "inferencePool"}
# What an endpoint picker reads of the pods of its pool.
_OF_A_POOL = {"metricsCompat": "vllm"}


@functools.cache
def _schema() -> Schema:
    return spec_schema()


@functools.cache
def _validator() -> Any:
    return validator_of(_schema())


def parse(manifest: Mapping[str, Any], source: str = "") -> InferenceService:
    """The service that `manifest` describes. `source` (a file's name) leads the error's text.

    Raises:
        ResourceError: with every problem found, each with its path, value and way out.
    """
    _refuse(envelope_problems(manifest), source)
    metadata, spec = manifest["metadata"], with_defaults(_schema(), manifest["spec"])
    _refuse(name_problems(metadata.get("name")) + problems_of(_schema(), spec, "spec", _validator()), source)
    _refuse(_engine_problems(spec) + _amount_problems(spec), source)
    return _built(metadata, spec)


def dropped_fields(last_applied: Mapping[str, Any]) -> list[SettingError]:
    """Unknown fields of the manifest that a user applied, where the API server dropped them without a word.

    Only those; whether the rest is right shows in the object itself.
    """
    spec = last_applied.get("spec")
    return unknown_fields(_schema(), spec, "spec") if isinstance(spec, Mapping) else []


def _refuse(problems: list[SettingError], source: str) -> None:
    if problems:
        raise ResourceError(problems, source)


def _engine_problems(spec: Mapping[str, Any]) -> list[SettingError]:
    """What EngineConfig refuses though the schema cannot say it."""
    try:
        EngineConfig.from_mapping(camel_to_snake(spec.get("engine", {})))
    except SettingError as error:
        return [error.renamed(f"spec.engine.{camel_of(error.field)}")]
    return []


def _amount_problems(spec: Mapping[str, Any]) -> list[SettingError]:
    """Amounts of resources that are none; the CRD leaves them open, since Kubernetes takes numbers and texts there."""
    out = []
    for part in ("limits", "requests"):
        for name, amount in (spec.get("resources", {}).get(part) or {}).items():
            if isinstance(amount, bool) or not re.match(SIZE_PATTERN, str(amount)):
                problem = "must be an amount such as 1, 500m or 16Gi"
                out.append(SettingError(f"spec.resources.{part}.{name}", amount, problem))
    return out


def _built(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> InferenceService:
    scaling = spec.get("autoscaling")
    annotations = metadata.get("annotations") or {}
    return InferenceService(
        name=metadata["name"],
        namespace=metadata.get("namespace") or "default",
        uid=metadata.get("uid") or "",
        generation=metadata.get("generation") or 0,
        model=_model(spec["model"], metadata["name"]),
        engine=camel_to_snake(_engine(spec)),
        replicas=None if scaling else spec.get("replicas", 1),
        autoscaling=_autoscaling(scaling) if scaling else None,
        resources=spec.get("resources", {}),
        template=spec.get("template", {}),
        image=spec.get("image"),
        image_pull_policy=spec.get("imagePullPolicy"),
        api_key_secret=_secret(spec.get("apiKeySecretRef")),
        cache=_cache(spec.get("cache")),
        rollout=_rollout(spec),
        drain_seconds=spec["drainSeconds"],
        startup_seconds=spec["startupSeconds"],
        fingerprint=_fingerprint(spec),
        paused=str(annotations.get(ANNOTATION_PAUSED, "")).lower() == "true",
        endpoint_picker=_endpoint_picker(spec.get("inferencePool")),
    )


def _fingerprint(spec: Mapping[str, Any]) -> str:
    chosen = without_defaults(_schema(), spec)
    about_pods = {k: v for k, v in chosen.items() if k not in _NOT_ABOUT_PODS}
    if engine := _engine(chosen):
        about_pods["engine"] = engine
    if "cache" in about_pods:
        about_pods["cache"] = {k: v for k, v in chosen["cache"].items() if k != "prefetch"}
    return hashlib.sha256(json.dumps(about_pods, sort_keys=True).encode()).hexdigest()[:16]


def _engine(spec: Mapping[str, Any]) -> dict[str, Any]:
    """`spec.engine`, with what the pods of an InferencePool need unless the resource says otherwise."""
    needed = _OF_A_POOL if spec.get("inferencePool") else {}
    return {**needed, **spec.get("engine", {})}


def _endpoint_picker(pool: Mapping[str, Any] | None) -> EndpointPicker | None:
    if not pool:
        return None
    picker = pool["endpointPicker"]
    return EndpointPicker(picker["name"], picker["port"], picker["failureMode"])


def _model(model: Mapping[str, Any], name: str) -> ModelSource:
    scheme, _, rest = model["uri"].partition("://")
    claim, path = None, rest
    if scheme == "pvc":
        claim, _, path = rest.partition("/")
    served = model.get("servedName", name)
    token = _secret(model.get("tokenSecretRef"))
    return ModelSource(model["uri"], scheme, path, served, claim, model.get("revision"), token)


def _rollout(spec: Mapping[str, Any]) -> Rollout:
    """As asked, but for a claim that one node only can mount: a surge pod on another would wait for ever."""
    if "size" in spec.get("cache", {}):
        return Rollout(max_surge=0, max_unavailable=1)
    return Rollout(spec["rollout"]["maxSurge"], spec["rollout"]["maxUnavailable"])


def _autoscaling(scaling: Mapping[str, Any]) -> Autoscaling:
    targets, behavior = scaling["targets"], scaling["behavior"]
    return Autoscaling(
        min_replicas=scaling["minReplicas"],
        max_replicas=scaling["maxReplicas"],
        queue_time_seconds=float(targets["queueTimeSeconds"]),
        batch_utilization=float(targets["batchUtilization"]),
        kv_cache_utilization=float(targets["kvCacheUtilization"]),
        scale_up=_scaling_rules(behavior["scaleUp"]),
        scale_down=_scaling_rules(behavior["scaleDown"]),
        idle_seconds=scaling["idleSeconds"],
    )


def _scaling_rules(rules: Mapping[str, Any]) -> ScalingRules:
    policies = tuple(Policy(p["type"], p["value"], p["periodSeconds"]) for p in rules["policies"])
    return ScalingRules(rules["stabilizationWindowSeconds"], rules["selectPolicy"], policies)


def _secret(reference: Mapping[str, Any] | None) -> SecretKey | None:
    return SecretKey(reference["name"], reference["key"]) if reference else None


def _cache(cache: Mapping[str, Any] | None) -> Cache | None:
    if not cache:
        return None
    return Cache(cache.get("pvc"), cache.get("size"), cache.get("storageClass"), cache["prefetch"])
