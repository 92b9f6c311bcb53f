"""The reference table of all engine settings: `python -m pagetide_spec.reference > docs/configuration.md`."""

from __future__ import annotations

import dataclasses
from typing import Any

from .config import EngineConfig, setting_of, type_of
from .flags import camel_of, describe_default, env_of, flag_of, resource_fields

_HEAD = """\
# Settings

<!-- Generated from EngineConfig by `python -m pagetide_spec.reference`; a test fails where they differ. -->

Every setting is a flag of `pagetide serve`, an environment variable, a keyword of `LLM(...)` and, but for those that
belong to one process, a field of `spec.engine` in the resource. A flag wins over an environment variable. A wrong value
is one line and exit code 2 before any model loads. What the settings do in practice is told in [engine.md](engine.md).
"""
_COLUMNS = "| setting | flag | environment | resource | values | default | meaning |\n|---|---|---|---|---|---|---|"


def configuration() -> str:
    """The page in Markdown, settings by group in the order of the fields."""
    groups: dict[str, list[str]] = {}
    for field in dataclasses.fields(EngineConfig):
        groups.setdefault(setting_of(field).group, []).append(_row(field))
    sections = [f"## {group.capitalize()}\n\n{_COLUMNS}\n" + "\n".join(rows) for group, rows in groups.items()]
    return _HEAD + "\n" + "\n\n".join(sections) + "\n"


def _row(field: dataclasses.Field[Any]) -> str:
    name, setting = field.name, setting_of(field)
    flag = "`MODEL` (no flag)" if name == "model" else f"`{flag_of(name)}`"
    resource = f"`{camel_of(name)}`" if field in resource_fields() else "`spec.model`" if not setting.local else "-"
    default = describe_default(field)
    cells = (f"`{name}`", flag, f"`{env_of(name)}`", resource, _values(field), default, setting.help)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _values(field: dataclasses.Field[Any]) -> str:
    """What a field accepts: `8, 16, 32`, `number above 0, at most 1`."""
    base, choices, _ = type_of(field)
    if choices is not None:
        return ", ".join(map(str, choices))
    setting = setting_of(field)
    limits = [("at least", setting.low), ("above", setting.above), ("at most", setting.high)]
    words = [f"{word} {limit}" for word, limit in limits if limit is not None]
    kind = {str: "text", int: "whole number", float: "number", bool: "true, false"}[base]
    return " ".join([kind, ", ".join(words)]).strip()


if __name__ == "__main__":
    print(configuration(), end="")
