"""Kubernetes' strategic merge, as far as pods need it: maps deeply, lists of named things by their name."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

# List fields of a pod whose entries have a name of their own; every other list is replaced as a whole.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}


def merged(base: Any, patch: Any, field: str = "") -> Any:
    """`patch` over `base`, both unchanged. `field` is the name under which they stand."""
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        out = {k: copy.deepcopy(v) for k, v in base.items()}
        for key, value in patch.items():
            out[key] = merged(base[key], value, key) if key in base else copy.deepcopy(value)
        return _without_rivals(out, patch, field)
    if isinstance(base, list) and isinstance(patch, list) and field in MERGE_KEYS:
        return _merged_lists(base, patch, MERGE_KEYS[field])
    return copy.deepcopy(patch)


def _merged_lists(base: list[Any], patch: list[Any], key: str) -> list[Any]:
    """Entries of `base` in their order, each with its namesake of `patch` over it, then the rest of `patch`."""
    over = {entry.get(key): entry for entry in patch}
    names = {entry[key] for entry in base}
    out = [_merged_entry(entry, over[entry[key]]) if entry[key] in over else copy.deepcopy(entry) for entry in base]
    return out + [copy.deepcopy(entry) for entry in patch if entry.get(key) not in names]


def _merged_entry(base: Mapping[str, Any], patch: Mapping[str, Any]) -> Any:
    return merged(base, patch, "entry")


# Of each group one field alone may stand in an object: the patch's choice drives out the base's.
_UNIONS = (
    {"value", "valueFrom"},
    {"emptyDir", "persistentVolumeClaim", "hostPath", "configMap", "secret", "projected", "csi", "nfs", "ephemeral"},
)


def _without_rivals(out: dict[str, Any], patch: Mapping[str, Any], field: str) -> dict[str, Any]:
    if field != "entry":
        return out
    for union in _UNIONS:
        if union & patch.keys():
            for rival in union - patch.keys():
                out.pop(rival, None)
    return out
