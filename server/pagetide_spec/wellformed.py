"""What holds for every value of a manifest, whatever its schema says: a tree of bounded size, values that travel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from .errors import SettingError

MAX_DEPTH = 64
# A resource of Kubernetes is at most 1.5 MiB; aliases of aliases can make far more out of a few lines of YAML.
MAX_VALUES = 20_000


def malformed(value: Any, path: str) -> list[SettingError]:
    """The first value below `path` that makes the whole unfit, as a problem; an empty list if there is none."""
    for count, (at, one, depth) in enumerate(_values(value, path), 1):
        if depth > MAX_DEPTH or count > MAX_VALUES:
            top = ".".join(at.split(".")[:3])
            problem = f"is nested more than {MAX_DEPTH} deep" if depth > MAX_DEPTH else f"has over {MAX_VALUES} values"
            return [SettingError(top, "...", problem)]
        if isinstance(one, str) and (bad := next((c for c in one if _is_unfit(c)), None)) is not None:
            return [SettingError(at, one, f"must not hold the character U+{ord(bad):04X}")]
        if isinstance(one, float) and not math.isfinite(one):
            return [SettingError(at, one, "must be a finite number")]
    return []


def _is_unfit(character: str) -> bool:
    """NUL, which no argument or variable of a process can hold, and half of a surrogate pair."""
    return character == "\0" or "\ud800" <= character <= "\udfff"


def _values(value: Any, path: str) -> Iterator[tuple[str, Any, int]]:
    """(path, value, depth) of all values, the outer ones first."""
    todo = [(path, value, 0)]
    while todo:
        at, one, depth = todo.pop()
        yield at, one, depth
        if isinstance(one, Mapping):
            todo += [(f"{at}.{name}", child, depth + 1) for name, child in one.items()]
        elif isinstance(one, list):
            todo += [(f"{at}[{i}]", child, depth + 1) for i, child in enumerate(one)]
