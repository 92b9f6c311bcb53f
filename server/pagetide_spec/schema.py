"""The schema of `InferenceService.spec`: what the API server checks and what `resource.parse` checks, once.

Written in the dialect of a CustomResourceDefinition (OpenAPI 3.0, structural): no `additionalProperties: false`, bounds
as `minimum` with a boolean `exclusiveMinimum`. Engine fields are generated from EngineConfig. They carry no structural
default: a default is filled in by the server that runs, so that a later version may choose a better one without
changing, and thereby restarting, services that never asked for the old one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .config import type_of
from .flags import camel_of, describe_default, resource_fields
from .rules import PERCENT_PATTERN, SIZE_PATTERN, URI_PATTERN
from .setting import setting_of

Schema = dict[str, Any]

# Above this a bound does not survive the API server's float64; the type's own range takes over.
_EXACT_FLOAT = 2**53
_TYPE_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def text(description: str, **more: Any) -> Schema:
    """A string field."""
    return {"type": "string", "description": description, **more}


def whole(description: str, **more: Any) -> Schema:
    """An integer field."""
    return {"type": "integer", "format": "int32", "description": description, **more}


def number(description: str, **more: Any) -> Schema:
    """A number field."""
    return {"type": "number", "description": description, **more}


def record(description: str, properties: dict[str, Schema], **more: Any) -> Schema:
    """An object field with the given fields and no others."""
    return {"type": "object", "description": description, "properties": properties, **more}


def listing(description: str, items: Schema, **more: Any) -> Schema:
    """A list field."""
    return {"type": "array", "description": description, "items": items, **more}


def anything(description: str, kind: str = "object") -> Schema:
    """A field whose inside is another API's affair: Kubernetes checks it where it is used."""
    return {"type": kind, "description": description, "x-kubernetes-preserve-unknown-fields": True}


def text_map(description: str) -> Schema:
    """A map of strings, such as labels."""
    return {"type": "object", "description": description, "additionalProperties": {"type": "string"}}


def count_or_percent(description: str, default: int) -> Schema:
    """Kubernetes' IntOrString, not negative."""
    return {
        "description": description,
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "minimum": 0,
        "maximum": 2**31 - 1,
        "pattern": PERCENT_PATTERN,
        "default": default,
    }


def engine_field(field: dataclasses.Field[Any]) -> Schema:
    """One field of EngineConfig as a schema: type, choices, bounds, and its default in words."""
    base, choices, _ = type_of(field)
    setting = setting_of(field)
    out: Schema = {"type": _TYPE_NAMES[base], "description": f"{setting.help} Default: {describe_default(field)}."}
    if base is int:
        out["format"] = "int64"
    if choices is not None:
        out["enum"] = list(choices)
    if setting.low is not None:
        out["minimum"] = setting.low
    if setting.above is not None:
        out |= {"minimum": setting.above, "exclusiveMinimum": True}
    if setting.high is not None and setting.high < _EXACT_FLOAT:
        out["maximum"] = setting.high
    return out


def _secret_key(description: str, default_key: str) -> Schema:
    fields = {
        "name": text("Name of the Secret, in the namespace of the service.", minLength=1, maxLength=253),
        "key": text("Key within the Secret.", default=default_key, minLength=1, maxLength=253),
    }
    return record(description, fields, required=["name"])


def _model() -> Schema:
    fields = {
        "uri": text(
            "Where the model is: hf://org/name (Hugging Face hub), pvc://claim/path (a PersistentVolumeClaim of this "
            "namespace), or file:///path (inside the container, from the image or a volume of template).",
            pattern=URI_PATTERN,
            maxLength=1024,
        ),
        "revision": text("Branch, tag or commit on the hub. Default: main.", minLength=1, maxLength=253),
        "servedName": text(
            "Name that clients give as `model`. Default: the name of this resource.", minLength=1, maxLength=253
        ),
        "tokenSecretRef": _secret_key("Hub token for gated or private models.", "token"),
    }
    return record("The model to serve.", fields, required=["uri"])


def _scaling_rules(direction: str, window: int, policies: list[dict[str, Any]]) -> Schema:
    policy = record(
        "One limit on the speed of change.",
        {
            "type": text("Whether value counts replicas or percent of them.", enum=["Pods", "Percent"]),
            "value": whole("Largest change allowed within periodSeconds.", minimum=1),
            "periodSeconds": whole("Length of the period, in seconds.", minimum=1, maximum=1800),
        },
        required=["type", "value", "periodSeconds"],
    )
    fields = {
        "stabilizationWindowSeconds": whole(
            "Look back so many seconds and take the smallest change asked for in that time.",
            minimum=0,
            maximum=3600,
            default=window,
        ),
        "selectPolicy": text(
            "Which policy counts: the one that allows the most (Max) or least (Min) change; Disabled: no change.",
            enum=["Max", "Min", "Disabled"],
            default="Max",
        ),
        "policies": listing("Limits on the speed of change.", policy, default=policies),
    }
    return record(f"Scaling {direction}, as in HorizontalPodAutoscaler v2.", fields, default={})


def _autoscaling() -> Schema:
    positive = {"minimum": 0, "exclusiveMinimum": True}
    targets = {
        "queueTimeSeconds": number("Seconds that 95% of requests may wait for a batch slot.", default=0.5, **positive),
        "batchUtilization": number(
            "Running sequences over those that fit, to aim at.", default=0.8, maximum=1, **positive
        ),
        "kvCacheUtilization": number("Used part of the KV cache to aim at.", default=0.9, maximum=1, **positive),
    }
    up = [{"type": "Percent", "value": 100, "periodSeconds": 15}, {"type": "Pods", "value": 4, "periodSeconds": 15}]
    behavior = {
        "scaleUp": _scaling_rules("up", 0, up),
        "scaleDown": _scaling_rules("down", 300, [{"type": "Percent", "value": 100, "periodSeconds": 15}]),
    }
    fields = {
        "minReplicas": whole("Smallest number of replicas; 0 allows scale to zero.", minimum=0, default=1),
        "maxReplicas": whole("Largest number of replicas.", minimum=1),
        "targets": record("What the replicas are scaled to hold.", targets, default={}),
        "behavior": record("How fast replicas may change.", behavior, default={}),
        "idleSeconds": whole(
            "Seconds without a request before going to zero (with minReplicas 0).", minimum=1, default=600
        ),
    }
    return record("Scale by load instead of a fixed number of replicas.", fields, required=["maxReplicas"])


def _cache() -> Schema:
    fields = {
        "pvc": text("Name of an existing PersistentVolumeClaim to use.", minLength=1, maxLength=253),
        "size": text(
            "Size of a claim to create, such as 50Gi, for one replica, which a rollout replaces without a surge pod.",
            pattern=SIZE_PATTERN,
            maxLength=32,
        ),
        "storageClass": text("StorageClass of the claim to create. Default: the cluster's.", maxLength=253),
        "prefetch": {
            "type": "boolean",
            "description": "Fill the volume by a Job before replicas are made for a model from the hub.",
            "default": True,
        },
    }
    return record("Volume that keeps downloaded models: an existing claim (pvc), or one to create (size).", fields)


def _inference_pool() -> Schema:
    picker = {
        "name": text("Name of its Service, in the namespace of the service.", minLength=1, maxLength=63),
        "port": whole("Port of that Service.", minimum=1, maximum=65535, default=9002),
        "failureMode": text(
            "What a gateway does while the picker does not answer: take any pod (FailOpen), or refuse (FailClose).",
            enum=["FailOpen", "FailClose"],
            default="FailClose",
        ),
    }
    about = "The endpoint picker, which chooses the pod for each request."
    fields = {"endpointPicker": record(about, picker, required=["name"])}
    what = "Offer the pods as an InferencePool, where Gateway API Inference Extension is installed."
    return record(what, fields, required=["endpointPicker"])


def _template() -> Schema:
    env = "Environment variables of the server container, merged by name."
    mounts = "Mounts of the server container, merged by mountPath."
    free = anything("One entry, in the form of Kubernetes' pod.")
    variable = {
        **anything("One variable, in the form of Kubernetes' container: value, or valueFrom."),
        "properties": {"name": text("Its name.", minLength=1), "value": text("Its value; quote a number.")},
        "required": ["name"],
    }
    fields = {
        "labels": text_map("Labels added to the pods."),
        "annotations": text_map("Annotations added to the pods."),
        "nodeSelector": text_map("Labels that a node must have."),
        "tolerations": listing("Taints that the pods tolerate.", free),
        "affinity": anything("Affinity of the pods to nodes and to other pods."),
        "topologySpreadConstraints": listing("How replicas spread over zones and nodes.", free),
        "priorityClassName": text("PriorityClass of the pods."),
        "runtimeClassName": text("RuntimeClass of the pods."),
        "schedulerName": text("Scheduler that places the pods."),
        "serviceAccountName": text("Account of the pods. Default: one made for the service, without any rights."),
        "imagePullSecrets": listing("Secrets for private registries.", free),
        "securityContext": anything("Security context of the pods, merged into the default."),
        "containerSecurityContext": anything("Security context of the server container, merged into the default."),
        "env": listing(env, variable),
        "envFrom": listing("Sources of environment variables of the server container.", free),
        "volumes": listing("Volumes of the pods, merged by name.", free),
        "volumeMounts": listing(mounts, free),
        "initContainers": listing("Containers to run before the server.", free),
        "containers": listing("Containers to run beside the server; one named `server` is merged into it.", free),
        "hostNetwork": {"type": "boolean", "description": "Use the node's network."},
        "hostIPC": {"type": "boolean", "description": "Use the node's IPC namespace."},
        "dnsPolicy": text("How the pods resolve names."),
    }
    return record("Merged into the pods: fields of a pod's spec, and env and mounts of the server.", fields)


def spec_schema() -> Schema:
    """The schema of `spec`, without CEL rules (crd.py adds them from `rules.RULES`)."""
    resources = {
        "limits": anything("Greatest amounts, such as nvidia.com/gpu: 1."),
        "requests": anything("Amounts to reserve. Default: the limits."),
    }
    rollout = {
        "maxSurge": count_or_percent("Extra replicas during a rollout, as a number or percent.", 1),
        "maxUnavailable": count_or_percent("Replicas that may be missing during a rollout, as a number or percent.", 0),
    }
    fields = {
        "model": _model(),
        "engine": record("Settings of the server.", {camel_of(f.name): engine_field(f) for f in resource_fields()}),
        "replicas": whole("Number of replicas, unless autoscaling is set. Default: 1.", minimum=0),
        "autoscaling": _autoscaling(),
        "resources": record("Resources of the server container.", resources),
        "template": _template(),
        "image": text("Image of the server. Default: the operator's choice.", minLength=1, maxLength=512),
        "imagePullPolicy": text("When to pull the image.", enum=["Always", "IfNotPresent", "Never"]),
        "apiKeySecretRef": _secret_key("API keys, separated by commas, that clients must send.", "api-key"),
        "cache": _cache(),
        "inferencePool": _inference_pool(),
        "rollout": record("How a new version replaces the old one.", rollout, default={}),
        "drainSeconds": whole(
            "Seconds that running requests get when a replica leaves.", minimum=0, maximum=86400, default=60
        ),
        "startupSeconds": whole("Seconds that loading the model may take.", minimum=10, maximum=86400, default=1800),
    }
    # The rule of rules.py once more, for servers that know no CEL.
    either = {"not": {"required": ["replicas", "autoscaling"]}}
    return record("What to serve, and how.", fields, required=["model"], **either)
