"""`response_format`, `structured_outputs` and `guided_*` to one `Structure`. Pure; the engine compiles it."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ..wire.messages import Structure
from .errors import invalid, wrong
from .protocol import SamplingFields, StructuredOutputs

MAX_CHOICES = 4096


class Asked(NamedTuple):
    """What an answer must look like, and the field of the request that says so; neither for free text."""

    field: str = ""
    structure: Structure | None = None


FREE = Asked()


def asked_structure(request: SamplingFields) -> Asked:
    """What the fields of this module ask for.

    Raises:
        ApiError: 400; a wrong form, or more than one way at once.
    """
    asked = [one for one in _all_asked(request) if one.structure is not None]
    if len(asked) > 1:
        raise invalid(f"{' and '.join(one.field for one in asked)}: only one of them can be asked for", asked[1].field)
    return asked[0] if asked else FREE


def _all_asked(request: SamplingFields) -> list[Asked]:
    outputs = request.structured_outputs
    found = [
        _from_format(request.response_format),
        _json("guided_json", request.guided_json),
        _text("regex", "guided_regex", request.guided_regex),
        _choice("guided_choice", request.guided_choice),
        _text("grammar", "guided_grammar", request.guided_grammar),
    ]
    if outputs is not None:
        whitespace, any_object = _whitespace(outputs), {"type": "object"} if outputs.json_object else None
        inner = [
            _json("structured_outputs.json", outputs.json, whitespace),
            _json("structured_outputs.json_object", any_object, whitespace),
            _text("regex", "structured_outputs.regex", outputs.regex),
            _choice("structured_outputs.choice", outputs.choice),
            _text("grammar", "structured_outputs.grammar", outputs.grammar),
        ]
        if all(one.structure is None for one in inner):
            raise invalid(
                "structured_outputs: name one of json, json_object, regex, choice, grammar", "structured_outputs"
            )
        found += inner
    return found


def _whitespace(outputs: StructuredOutputs) -> str | None:
    """The pattern of white space in JSON that is asked for; None: the usual layouts."""
    if outputs.disable_additional_properties:
        problem = "is not supported; write additionalProperties: false into the schema"
        raise wrong("structured_outputs.disable_additional_properties", True, problem)
    pattern = "" if outputs.disable_any_whitespace else outputs.whitespace_pattern
    if pattern is not None and outputs.json is None and not outputs.json_object:
        raise wrong("structured_outputs.whitespace_pattern", pattern, "needs json or json_object")
    return pattern


def _from_format(given: dict[str, Any] | None) -> Asked:
    if given is None or given.get("type") == "text":
        return FREE
    kind = given.get("type")
    if kind == "json_object":
        return Asked("response_format", Structure(kind="json_object"))
    if kind != "json_schema":
        raise wrong("response_format.type", kind, "must be text, json_object or json_schema")
    wrapper = given.get("json_schema")
    schema = wrapper.get("schema", wrapper.get("json_schema")) if isinstance(wrapper, dict) else None
    if schema is None:
        raise invalid("response_format.json_schema.schema: is required", "response_format.json_schema.schema")
    return _json("response_format.json_schema.schema", schema)


def _json(name: str, schema: Any, whitespace: str | None = None) -> Asked:
    if schema is None:
        return FREE
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError) as error:
            raise wrong(name, schema, f"is not valid JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise wrong(name, schema, "must be a JSON schema, which is an object")
    if whitespace is not None:
        # The compiler's own extension of JSON schema. It goes beside the rest: references count from the root.
        options = {"x-guidance": {"whitespace_pattern": whitespace}}
        schema = {**schema, **options} if isinstance(schema, dict) else {**options, "allOf": [schema]}
    try:
        return Asked(name, Structure(kind="json", value=msgspec.json.encode(schema).decode()))
    except RecursionError:
        raise invalid(f"{name}: is nested too deeply", name) from None


def _text(kind: Any, name: str, value: str | None) -> Asked:
    if value is None:
        return FREE
    if not value:
        raise wrong(name, value, "must not be empty")
    return Asked(name, Structure(kind=kind, value=value))


def _choice(name: str, value: list[str] | None) -> Asked:
    if value is None:
        return FREE
    if not 0 < len(value) <= MAX_CHOICES or not all(value):
        raise wrong(name, value, f"must be 1 to {MAX_CHOICES} texts, none of them empty")
    return Asked(name, Structure(kind="choice", value=msgspec.json.encode(value).decode()))
