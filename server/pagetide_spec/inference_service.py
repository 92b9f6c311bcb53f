"""An InferenceService as data. `resource.parse` makes one of a manifest."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal


@dataclasses.dataclass(frozen=True)
class SecretKey:
    """A key of a Secret in the service's namespace."""

    name: str
    key: str


@dataclasses.dataclass(frozen=True)
class ModelSource:
    """Where a model comes from.

    Attributes:
        uri: as given.
        scheme: `hf` (hub id in `path`), `pvc` (file or folder `path` of the claim; empty: its root) or `file`
            (absolute `path`).
        served_name: what clients give as `model`.
    """

    uri: str
    scheme: Literal["hf", "pvc", "file"]
    path: str
    served_name: str
    claim: str | None = None
    revision: str | None = None
    token_secret: SecretKey | None = None


@dataclasses.dataclass(frozen=True)
class Policy:
    """At most `value` replicas (Pods) or percent of them (Percent) change within `period_seconds`."""

    type: Literal["Pods", "Percent"]
    value: int
    period_seconds: int


@dataclasses.dataclass(frozen=True)
class ScalingRules:
    """One direction of HorizontalPodAutoscaler v2's `behavior`."""

    stabilization_window_seconds: int
    select_policy: Literal["Max", "Min", "Disabled"]
    policies: tuple[Policy, ...]


@dataclasses.dataclass(frozen=True)
class Autoscaling:
    """Bounds, targets and speed of scaling."""

    min_replicas: int
    max_replicas: int
    queue_time_seconds: float
    batch_utilization: float
    kv_cache_utilization: float
    scale_up: ScalingRules
    scale_down: ScalingRules
    idle_seconds: int


@dataclasses.dataclass(frozen=True)
class Cache:
    """The volume for downloaded models: an existing claim, or size (and class) of one to create.

    `prefetch`: a Job fills it before replicas are made.
    """

    pvc: str | None = None
    size: str | None = None
    storage_class: str | None = None
    prefetch: bool = True


@dataclasses.dataclass(frozen=True)
class EndpointPicker:
    """The Service that chooses the pod for each request to an InferencePool.

    `failure_mode`: what a gateway does while it does not answer.
    """

    name: str
    port: int
    failure_mode: Literal["FailOpen", "FailClose"]


@dataclasses.dataclass(frozen=True)
class Rollout:
    """How many pods a rollout may add and miss, each a number or a percentage such as `25%`."""

    max_surge: int | str
    max_unavailable: int | str


@dataclasses.dataclass(frozen=True)
class InferenceService:
    """One valid InferenceService with its defaults.

    Attributes:
        engine: EngineConfig field names to values, only what the resource sets, or what an InferencePool needs.
        replicas: None where `autoscaling` is set.
        resources, template: as in the manifest.
        fingerprint: hash of what was chosen about the pods; defaults and numbers of replicas do not count, so that a
            later version's new field changes nothing.
        paused: the operator leaves the children alone.
        endpoint_picker: that of the InferencePool; None where no pool is asked for.
    """

    name: str
    namespace: str
    uid: str
    generation: int
    model: ModelSource
    engine: Mapping[str, Any]
    replicas: int | None
    autoscaling: Autoscaling | None
    resources: Mapping[str, Any]
    template: Mapping[str, Any]
    image: str | None
    image_pull_policy: str | None
    api_key_secret: SecretKey | None
    cache: Cache | None
    rollout: Rollout
    drain_seconds: int
    startup_seconds: int
    fingerprint: str
    paused: bool = False
    endpoint_picker: EndpointPicker | None = None
