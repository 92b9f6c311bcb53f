"""Checks a value against a schema of the CRD's dialect, and fills in its defaults, as the API server would.

Differs from the API server in one point: a field that the schema does not know is a problem, not silently dropped.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema

from .errors import SettingError
from .flags import field_hint
from .rules import PATTERN_WORDS, REPLICAS_OR_AUTOSCALING, RULES, Rule

Schema = Mapping[str, Any]

_TYPE_WORDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "a mapping",
    "array": "a list",
}
_FORMAT_LIMITS = {"int32": 2**31, "int64": 2**63}


def with_defaults(schema: Schema, value: Any) -> Any:
    """A copy of `value` with the schema's defaults where fields are missing, or null though they have a default."""
    if isinstance(value, Mapping) and "properties" in schema:
        out = {k: copy.deepcopy(v) for k, v in value.items()}
        for name, child in schema["properties"].items():
            if "default" in child and out.get(name) is None:
                out[name] = copy.deepcopy(child["default"])
            if name in out:
                out[name] = with_defaults(child, out[name])
        return out
    if isinstance(value, list) and "items" in schema:
        return [with_defaults(schema["items"], v) for v in value]
    return copy.deepcopy(value)


def without_defaults(schema: Schema, value: Any) -> Any:
    """A copy of `value` without what `with_defaults` would fill in: what somebody has chosen."""
    if not isinstance(value, Mapping) or "properties" not in schema:
        return copy.deepcopy(value)
    out = {}
    for name, child in value.items():
        known = schema["properties"].get(name, {})
        chosen = without_defaults(known, child)
        if "default" in known and child == with_defaults(known, known["default"]):
            continue
        out[name] = chosen
    return out


def validator_of(schema: Schema) -> Any:
    """jsonschema's validator of `schema`, to be made once and used often."""
    return jsonschema.Draft4Validator(_with_types(schema))


def problems_of(schema: Schema, value: Any, path: str, validator: Any = None) -> list[SettingError]:
    """Every fault of `value`, each under the path of its field below `path`. `validator`: that of `schema`, at hand.

    Rules over several fields are checked only where the schema holds, since they rely on it.
    """
    found = [e for error in (validator or validator_of(schema)).iter_errors(value) for e in _translated(error, path)]
    found += unknown_fields(schema, value, path)
    found += _beyond_format(schema, value, path)
    return found or list(_broken_rules(value, path))


def unknown_fields(schema: Schema, value: Any, path: str) -> list[SettingError]:
    """A problem for each field that the schema does not know, with the nearest name that it knows."""
    return [
        SettingError(at, given, field_hint(at, node["properties"]))
        for at, node, given, name in _walk(schema, value, path)
        if name is not None and name not in node["properties"] and not node.get("x-kubernetes-preserve-unknown-fields")
    ]


def _walk(schema: Schema, value: Any, path: str) -> Iterator[tuple[str, Schema, Any, str | None]]:
    """(path of a value, schema of what contains it, the value, its field name) for all fields that have a schema."""
    if isinstance(value, Mapping) and "properties" in schema:
        for name, child in value.items():
            yield f"{path}.{name}", schema, child, name
            yield from _walk(schema["properties"].get(name, {}), child, f"{path}.{name}")
    if isinstance(value, list) and "items" in schema:
        for i, child in enumerate(value):
            yield from _walk(schema["items"], child, f"{path}[{i}]")


def _beyond_format(schema: Schema, value: Any, path: str) -> list[SettingError]:
    """Whole numbers above what their `format` holds; below it lies none that its own minimum allows."""
    out = []
    for at, node, given, name in _walk(schema, value, path):
        bits = _FORMAT_LIMITS.get(node["properties"].get(name, {}).get("format", ""))
        if bits and isinstance(given, int) and given >= bits:
            out.append(SettingError(at, given, f"must be below {bits}"))
    return out


def _with_types(schema: Any) -> Any:
    """`schema` with IntOrString spelled out, which JSON Schema does not know."""
    if isinstance(schema, Mapping):
        out = {k: _with_types(v) for k, v in schema.items() if k != "format"}
        if out.pop("x-kubernetes-int-or-string", False):
            out["type"] = ["integer", "string"]
        return out
    return [_with_types(v) for v in schema] if isinstance(schema, list) else schema


def _translated(error: Any, path: str) -> Iterator[SettingError]:
    """A fault that jsonschema found (`error`: its ValidationError), in our words."""
    at = path + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.absolute_path)
    kind, limit = error.validator, error.validator_value
    if kind == "not":
        rule = REPLICAS_OR_AUTOSCALING
        yield SettingError(f"{path}.{rule.field}", error.instance.get(rule.field), rule.message)
        return
    if kind == "required":
        for name in limit:
            if name not in error.instance:
                yield SettingError(f"{at}.{name}", None, "is required")
        return
    yield SettingError(at, error.instance, _words(kind, limit, error))


def _words(kind: str, limit: Any, error: Any) -> str:
    if kind == "type":
        kinds = limit if isinstance(limit, list) else [limit]
        return "must be " + " or ".join(_TYPE_WORDS[k] for k in kinds)
    if kind == "enum":
        return f"must be one of {', '.join(map(str, limit))}"
    if kind == "minimum":
        return f"must be {'above' if error.schema.get('exclusiveMinimum') else 'at least'} {limit:g}"
    if kind == "maximum":
        return f"must be at most {limit:g}"
    if kind == "minLength":
        return "must not be empty" if limit == 1 else f"must have at least {limit} characters"
    if kind == "maxLength":
        return f"must have at most {limit} characters"
    if kind == "pattern":
        return PATTERN_WORDS[limit]
    return str(error.message)


def _broken_rules(value: Any, path: str) -> Iterator[SettingError]:
    for rule in RULES:
        node = _node(rule, value)
        if node is not None and not rule.holds(node):
            at = ".".join((path, *rule.path, rule.field))
            yield SettingError(at, node.get(rule.field), rule.message)


def _node(rule: Rule, value: Any) -> Any:
    for name in rule.path:
        value = value.get(name)
        if value is None:
            return None
    return value
