"""All engine settings as Markdown tables, for docs/configuration.md (`reference.py` writes them there)."""

from __future__ import annotations

import dataclasses
from typing import Any

from .config import EngineConfig, type_of
from .flags import camel_of, describe_default, env_of, flag_of, resource_fields
from .setting import setting_of

_COLUMNS = "| setting | flag | environment | resource | values | default | meaning |\n|---|---|---|---|---|---|---|"


def settings_table() -> str:
    """One table a group, in the order of the fields."""
    groups: dict[str, list[str]] = {}
    for field in dataclasses.fields(EngineConfig):
        groups.setdefault(setting_of(field).group, []).append(_row(field))
    return "\n\n".join(f"## {group.capitalize()}\n\n{_COLUMNS}\n" + "\n".join(rows) for group, rows in groups.items())


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
