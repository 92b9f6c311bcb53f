"""Kubernetes' strategic merge, as far as pods need it: maps deeply, lists of named things by their name."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

# List fields of a pod whose entries have a name of their own, and the fields that make it; every other list is replaced
# as a whole.
MERGE_KEYS = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "protocol"),
}
_DEFAULTS = {"protocol": "TCP"}
# Strategic merge's own field in a patch: `delete` takes an entry of a list out, `replace` takes the patch as it is.
DIRECTIVE = "$patch"


def merged(base: Any, patch: Any, field: str = "") -> Any:
    """`patch` over `base`, both unchanged. `field` is the name under which they stand."""
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        if patch.get(DIRECTIVE) == "replace":
            return _plain(patch)
        out = {k: copy.deepcopy(v) for k, v in base.items()}
        for key, value in patch.items():
            out[key] = merged(base[key], value, key) if key in base else copy.deepcopy(value)
        return _without_rivals(out, base, patch, field)
    if isinstance(base, list) and isinstance(patch, list) and field in MERGE_KEYS:
        return _merged_lists(base, patch, field)
    return copy.deepcopy(patch)


def _merged_lists(base: list[Any], patch: list[Any], field: str) -> list[Any]:
    """Entries of `base` in their order, each with its namesake of `patch` over it, then the rest of `patch`."""
    over = {_name(entry, field): entry for entry in patch}
    names = {_name(entry, field) for entry in base}
    gone = {name for name, entry in over.items() if entry.get(DIRECTIVE) == "delete"}
    out = [merged(entry, over.get(_name(entry, field), {}), field) for entry in base if _name(entry, field) not in gone]
    return out + [_plain(entry) for entry in patch if _name(entry, field) not in names | gone]


def _plain(patch: Mapping[str, Any]) -> dict[str, Any]:
    return {k: copy.deepcopy(v) for k, v in patch.items() if k != DIRECTIVE}


def _name(entry: Mapping[str, Any], field: str) -> tuple[Any, ...]:
    return tuple(entry.get(key, _DEFAULTS.get(key)) for key in MERGE_KEYS[field])


# What may stand once only in an object of each field: the patch's choice drives out the base's. Of a volume that is
# everything but its name, whatever sources a later Kubernetes may bring.
_HANDLERS = frozenset(("exec", "httpGet", "tcpSocket", "grpc", "sleep"))
_RIVALS = {
    "env": frozenset(("value", "valueFrom")),
    **dict.fromkeys(("preStop", "postStart", "livenessProbe", "readinessProbe", "startupProbe"), _HANDLERS),
}


def _without_rivals(
    out: dict[str, Any], base: Mapping[str, Any], patch: Mapping[str, Any], field: str
) -> dict[str, Any]:
    rivals = base.keys() - {"name"} if field == "volumes" else _RIVALS.get(field, frozenset())
    chosen = patch.keys() - {"name"} if field == "volumes" else rivals & patch.keys()
    return {k: v for k, v in out.items() if k not in rivals or k in patch} if chosen else out
