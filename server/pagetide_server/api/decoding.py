"""Request body to struct. Every fault is one sentence with the field, what was given and what would be right."""

from __future__ import annotations

import difflib
import re
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from pagetide_spec.errors import SHOWN_LENGTH, shorten

from .errors import ApiError, invalid
from .protocol import StreamOptions, StructuredOutputs

T = TypeVar("T", bound=msgspec.Struct)

# The code of a body that is no JSON object.
NO_JSON = "invalid_json"

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`$", re.DOTALL)
_BYTE = re.compile(r"\(byte (\d+)\)")
_FIELD_BEFORE = re.compile(rb'"([A-Za-z_]{1,64})"\s*:\s*(?:\{[^{}]{0,200})?[-\w.+]*$')
_NO_NUMBER = re.compile(rb"-?(?:NaN|Infinity)")
# Half of a pair so near the end that msgspec takes the body for cut off.
_HALF_AT_END = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}[^\\]{0,6}$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


def parse(raw: bytes, kind: type[T]) -> T:
    """The body as a `kind`.

    Raises:
        ApiError: 400; the body is no JSON, or not of this form.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error), raw, kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(str(error), raw) from None
    except RecursionError:
        raise invalid("the body is nested too deeply", code=NO_JSON) from None


def unknown_field(name: str, kind: type[msgspec.Struct], path: str = "") -> ApiError:
    """400 for a field that does not exist, with the nearest one that does."""
    near = difflib.get_close_matches(name[:SHOWN_LENGTH], kind.__struct_fields__, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    shown = f"{path}.{name}" if path else name
    return invalid(f"{shown[:SHOWN_LENGTH]}: no such field{hint}", shown[:SHOWN_LENGTH], "unknown_field")


def _explained(text: str, raw: bytes, kind: type[msgspec.Struct]) -> ApiError:
    # No regular expression: a name may have 32 MB, and whoever is served waits meanwhile.
    head, at, place = text.rpartition(" - at `")
    problem, path = (head, place[:-1]) if at and place.find("`") == len(place) - 1 else (text, "$")
    field = path.removeprefix("$").removeprefix(".")
    if found := _UNKNOWN.match(problem):
        return unknown_field(found["name"], _NESTED.get(field, kind), field)
    if found := _MISSING.match(problem):
        name = f"{field}.{found['name']}" if field else found["name"]
        return invalid(f"{name}: is required", name, "missing_field")
    if not field:
        return invalid(f"the body must be a JSON object: {problem}", code=NO_JSON)
    if problem.startswith("Expected `null`, "):  # the type of what is not supported
        return invalid(f"{field}: is not supported{_INSTEAD.get(field, '')}", field)
    problem = problem[:1].lower() + problem[1:].replace("`", "")
    if problem.startswith("invalid enum value"):
        problem = f"must be {' or '.join(_literals(get_type_hints(kind)[field.partition('[')[0]]))}"
    return invalid(f"{field}: {_value_at(raw, path)}: {problem}", re.split(r"[.\[]", field)[0], "invalid_value")


# What to use instead of a field that is not supported.
_INSTEAD = {"functions": "; use tools", "function_call": "; use tool_choice"}
# The structs to which the path of a nested field leads.
_NESTED: dict[str, type[msgspec.Struct]] = {"stream_options": StreamOptions, "structured_outputs": StructuredOutputs}


def _literals(hint: Any) -> list[str]:
    """The values that a type names one by one."""
    parts = get_args(hint)
    return list(parts) if get_origin(hint) is Literal else [value for part in parts for value in _literals(part)]


def _value_at(raw: bytes, path: str) -> str:
    try:
        value = msgspec.json.decode(raw)
        for name, index in _STEP.findall(path):
            value = value[int(index)] if index else value[name]
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, RecursionError):
        return "wrong value"
    return shorten(value)


def _malformed(text: str, raw: bytes) -> ApiError:
    place = _BYTE.search(text)
    if place is None:
        text = "half of a UTF-16 surrogate pair" if _HALF_AT_END.search(raw[-16:]) else text
        return invalid(f"the body is not valid JSON: {text}", code=NO_JSON)
    at = int(place[1])
    before = _FIELD_BEFORE.search(raw[max(0, at - 400) : at])
    field = before[1].decode() if before else None
    # The reported place may lie at the second character of -Infinity.
    if _NO_NUMBER.match(raw, at) or _NO_NUMBER.match(raw, max(0, at - 1)):
        return invalid(f"{field or 'the body'}: NaN and Infinity are not allowed", field, "invalid_value")
    return invalid(f"the body is not valid JSON: {text}", field, NO_JSON)
