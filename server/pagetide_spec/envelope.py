"""What every manifest has around its `spec`, and YAML files of manifests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from .errors import ResourceError, SettingError
from .names import API_VERSION, KIND, MAX_SERVICE_NAME_LENGTH
from .schema import Schema
from .validation import unknown_fields

_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_ENVELOPE: Schema = {"properties": {k: {} for k in ("apiVersion", "kind", "metadata", "spec", "status")}}


def load_documents(text: str, source: str) -> list[dict[str, Any]]:
    """The InferenceService manifests of a YAML text; empty documents are skipped.

    Raises:
        ResourceError: not YAML, nothing in it, or something else than an InferenceService of our version.
    """
    try:
        documents = [d for d in yaml.safe_load_all(text) if d is not None]
    except yaml.YAMLError as error:
        raise ResourceError([SettingError("document", None, f"not YAML: {_one_line(error)}")], source) from None
    if not documents:
        raise ResourceError([SettingError("document", None, f"holds no {KIND}")], source)
    problems = [p for d in documents for p in envelope_problems(d)]
    if problems:
        raise ResourceError(problems, source)
    return documents


def _one_line(error: yaml.YAMLError) -> str:
    return " ".join(str(error).split())


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
    return [p.renamed(p.field.removeprefix(".")) for p in out]


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
