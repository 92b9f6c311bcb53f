"""Rules over several fields of the resource: each as CEL for the API server and as Python for everyone else.

Kubernetes knows CEL rules since 1.25; older servers drop them, and the operator's and the local runner's check is the
only one. A test evaluates both forms on the same examples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

_LABEL = "[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
URI_PATTERN = rf"^(hf://[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+|pvc://{_LABEL}(/.+)?|file:///.+)$"
PERCENT_PATTERN = "^(0|[1-9][0-9]*)%$"
SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)?([KMGTPE]i?|k|m)?$"
_ONE_NODE = (
    "the claim of cache.size can be mounted on one node only; for more replicas name a ReadWriteMany claim in cache.pvc"
)
_URI_FORMS = "must be hf://org/name, pvc://claim/path or file:///path"

# What to say instead of a regular expression.
PATTERN_WORDS = {
    URI_PATTERN: _URI_FORMS,
    PERCENT_PATTERN: "must be a number or a percentage such as 25%",
    SIZE_PATTERN: "must be a size such as 50Gi",
}


@dataclasses.dataclass(frozen=True)
class Rule:
    """One rule of the object at `path`; it holds where that object is absent.

    Attributes:
        path: fields from `spec` down to the object that CEL calls `self`.
        field: the field of that object to name in an error.
        cel: the rule in CEL.
        holds: the same rule over the object, which has passed the schema and has its defaults.
        message: what is wrong and what would be right.
    """

    path: tuple[str, ...]
    field: str
    cel: str
    holds: Callable[[Mapping[str, Any]], bool]
    message: str


# The schema has it as well, for servers that know no CEL.
REPLICAS_OR_AUTOSCALING = Rule(
    (),
    "replicas",
    "!(has(self.replicas) && has(self.autoscaling))",
    lambda spec: not ("replicas" in spec and "autoscaling" in spec),
    "set either replicas or autoscaling, not both",
)
RULES = (
    REPLICAS_OR_AUTOSCALING,
    Rule(
        (),
        "replicas",
        "!(has(self.cache) && has(self.cache.size)) || !has(self.replicas) || self.replicas <= 1",
        lambda spec: "size" not in spec.get("cache", {}) or spec.get("replicas", 1) <= 1,
        _ONE_NODE,
    ),
    Rule(
        (),
        "autoscaling",
        "!(has(self.cache) && has(self.cache.size)) || !has(self.autoscaling) || self.autoscaling.maxReplicas <= 1",
        lambda spec: "size" not in spec.get("cache", {}) or spec.get("autoscaling", {}).get("maxReplicas", 1) <= 1,
        f"maxReplicas must be 1: {_ONE_NODE}",
    ),
    Rule(
        ("model",),
        "uri",
        "self.uri.startsWith('hf://') || self.uri.startsWith('pvc://') || self.uri.startsWith('file:///')",
        lambda model: model["uri"].startswith(("hf://", "pvc://", "file:///")),
        _URI_FORMS,
    ),
    Rule(
        ("model",),
        "uri",
        "!self.uri.contains('/../') && !self.uri.endsWith('/..')",
        lambda model: "/../" not in model["uri"] + "/",
        "must not contain `..`",
    ),
    Rule(
        ("model",),
        "revision",
        "!has(self.revision) || self.uri.startsWith('hf://')",
        lambda model: "revision" not in model or model["uri"].startswith("hf://"),
        "only hf:// models have revisions",
    ),
    Rule(
        ("autoscaling",),
        "maxReplicas",
        "self.minReplicas <= self.maxReplicas",
        lambda scaling: scaling["minReplicas"] <= scaling["maxReplicas"],
        "must not be less than minReplicas",
    ),
    Rule(
        ("cache",),
        "pvc",
        "has(self.pvc) != has(self.size)",
        lambda cache: ("pvc" in cache) != ("size" in cache),
        "set either pvc (an existing claim) or size (a claim to create)",
    ),
    Rule(
        ("cache",),
        "storageClass",
        "!has(self.storageClass) || has(self.size)",
        lambda cache: "storageClass" not in cache or "size" in cache,
        "is for a claim to create; set size, too",
    ),
    Rule(
        ("rollout",),
        "maxSurge",
        "!(string(self.maxSurge) in ['0', '0%'] && string(self.maxUnavailable) in ['0', '0%'])",
        lambda rollout: not {str(rollout["maxSurge"]), str(rollout["maxUnavailable"])} <= {"0", "0%"},
        "maxSurge and maxUnavailable must not both be 0: no pod could ever be replaced",
    ),
)
