"""What every manifest has around its `spec`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .errors import SettingError
from .names import API_VERSION, KIND, MAX_SERVICE_NAME_LENGTH
from .schema import Schema
from .validation import unknown_fields
from .wellformed import malformed

_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_ENVELOPE: Schema = {"properties": {k: {} for k in ("apiVersion", "kind", "metadata", "spec", "status")}}


def envelope_problems(manifest: Any) -> list[SettingError]:
    """What is wrong outside of `spec`: version, kind, unknown fields, missing parts."""
    if not isinstance(manifest, Mapping):
        return [SettingError("document", manifest, f"must be a mapping with kind: {KIND}")]
    out = []
    for field, right in (("apiVersion", API_VERSION), ("kind", KIND)):
        if manifest.get(field) != right:
            out.append(SettingError(field, manifest.get(field), f"must be {right}"))
    if out:
        return out
    out = unknown_fields(_ENVELOPE, manifest, "")
    for field in ("metadata", "spec"):
        if not isinstance(manifest.get(field), Mapping):
            out.append(SettingError(field, manifest.get(field), "must be a mapping"))
    out = [p.renamed(p.field.removeprefix(".")) for p in out]
    return out or malformed(manifest["spec"], "spec") or _metadata_problems(manifest["metadata"])


def _metadata_problems(metadata: Mapping[str, Any]) -> list[SettingError]:
    """What is wrong with `metadata` but for the name; the API server checks as much by itself."""
    out = malformed(metadata, "metadata")
    for field in ("labels", "annotations"):
        entries = metadata.get(field)
        if entries is not None and not isinstance(entries, Mapping):
            out.append(SettingError(f"metadata.{field}", entries, "must be a mapping"))
        elif entries is not None:
            wrong = {k: v for k, v in entries.items() if not isinstance(v, str)}
            out += [SettingError(f"metadata.{field}.{k}", v, "must be text; quote it") for k, v in wrong.items()]
    namespace = metadata.get("namespace")
    if namespace is not None and not (isinstance(namespace, str) and _NAMESPACE.fullmatch(namespace)):
        out.append(SettingError("metadata.namespace", namespace, "must be a DNS label"))
    return out


def name_problems(name: Any) -> list[SettingError]:
    """What is wrong with `metadata.name`: it must fit into the names of Services."""
    if not isinstance(name, str) or not name:
        return [SettingError("metadata.name", name, "is required")]
    if len(name) > MAX_SERVICE_NAME_LENGTH:
        problem = f"has {len(name)} characters; at most {MAX_SERVICE_NAME_LENGTH} fit into the names of its children"
        return [SettingError("metadata.name", name, problem)]
    if not _DNS_LABEL.fullmatch(name):
        problem = "must be a DNS label: a lower-case letter, then letters, digits and dashes, and no dash at the end"
        return [SettingError("metadata.name", name, problem)]
    return []
