"""YAML texts of InferenceServices, read strictly: what YAML would let pass in silence is a problem with its line."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from .envelope import envelope_problems
from .errors import ResourceError, SettingError
from .names import KIND

_TEXT_TAG = "tag:yaml.org,2002:str"
_MERGE_TAG = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a field given twice, of which plain YAML keeps the last, and fields that are no text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag == _MERGE_TAG:
                continue
            if key.tag != _TEXT_TAG:
                raise yaml.constructor.ConstructorError(
                    None, None, f"field {key.value!r} must be text; quote it", key.start_mark
                )
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"field {key.value!r} stands twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def load_documents(text: str, source: str) -> list[dict[str, Any]]:
    """The InferenceService manifests of a YAML text; empty documents are skipped.

    Raises:
        ResourceError: not YAML, nothing in it, or something else than an InferenceService of our version.
    """
    try:
        documents = [d for d in yaml.load_all(text, _Loader) if d is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # The library lets Python's own errors through: for a date that there is not, or too deep a nesting.
        problem = SettingError("document", _place(error), f"is not YAML: {_reason(error)}")
        raise ResourceError([problem], source) from None
    if not documents:
        raise ResourceError([SettingError("document", "", f"holds no {KIND}")], source)
    problems = [p for d in documents for p in envelope_problems(d)]
    if problems:
        raise ResourceError(problems, source)
    return documents


def _place(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return " ".join(str(getattr(error, "problem", None) or error).split())
