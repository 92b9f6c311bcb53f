"""All fields of an InferenceService as Markdown tables, for docs/resource.md (`reference.py` writes them there)."""

from __future__ import annotations

import json
from collections.abc import Iterator

from .crd import status_schema
from .rules import PATTERN_WORDS, RULES
from .schema import Schema, spec_schema

_COLUMNS = "| field | values | default | meaning |\n|---|---|---|---|"


def spec_table() -> str:
    """One row for each field of `spec` but those of `engine`, which the table of settings has."""
    return _table(spec_schema(), "spec", skip=frozenset(("spec.engine",)))


def status_table() -> str:
    """One row for each field of `status`."""
    return _table(status_schema(), "status")


def rules_table() -> str:
    """What holds between fields, in the words of the refusal."""
    rows = [f"| `{'.'.join(('spec', *rule.path, rule.field))}` | {rule.message} |" for rule in RULES]
    return "\n".join(["| field | rule |", "|---|---|", *rows])


def _table(schema: Schema, path: str, skip: frozenset[str] = frozenset()) -> str:
    rows = [_row(at, node, needed) for at, node, needed in _fields(schema, path, skip)]
    return "\n".join([_COLUMNS, *rows])


def _fields(schema: Schema, path: str, skip: frozenset[str]) -> Iterator[tuple[str, Schema, bool]]:
    """(path, schema, whether it is required) of every field, parents first."""
    for name, node in schema.get("properties", {}).items():
        at = f"{path}.{name}"
        yield at, node, name in schema.get("required", ())
        if at not in skip:
            yield from _fields(node, at, skip)
            yield from _fields(node.get("items", {}), f"{at}[]", skip)


def _row(path: str, node: Schema, needed: bool) -> str:
    has_default = "default" in node and node["default"] != {}
    default = f"`{json.dumps(node['default'])}`" if has_default else "required" if needed else ""
    cells = (f"`{path}`", _values(node), default, node.get("description", ""))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _values(node: Schema) -> str:
    """What a field accepts: `whole number, at least 0`."""
    if "enum" in node:
        return ", ".join(map(str, node["enum"]))
    if node.get("x-kubernetes-int-or-string"):
        return "number or percentage"
    kinds = {"string": "text", "integer": "whole number", "boolean": "true, false", "array": "list", "object": "object"}
    words: list[str] = [kinds.get(node["type"], str(node["type"]))]
    if "minimum" in node:
        words.append(f"{'above' if node.get('exclusiveMinimum') else 'at least'} {node['minimum']:g}")
    if "maximum" in node:
        words.append(f"at most {node['maximum']:g}")
    if "pattern" in node:
        words.append(PATTERN_WORDS[node["pattern"]].removeprefix("must be "))
    return ", ".join(words)
