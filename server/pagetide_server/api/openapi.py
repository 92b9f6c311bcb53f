"""Request bodies in the OpenAPI document: their schemas are made from the structs that decode them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

_REF = "#/components/schemas/{name}"


def body_of(kind: type[msgspec.Struct], stream: bool = False) -> dict[str, Any]:
    """Arguments of a route for a JSON body of `kind`; `stream`: it may answer with events."""
    content: dict[str, Any] = {"application/json": {}}
    if stream:
        content["text/event-stream"] = {}
    return {
        "openapi_extra": {
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": {"$ref": _REF.format(name=kind.__name__)}}},
            }
        },
        "responses": {200: {"description": "The answer", "content": content}, **ERRORS},
    }


_ERROR = {
    "description": "An error object",
    "content": {"application/json": {"schema": {"$ref": _REF.format(name="Error")}}},
}
ERRORS: dict[int | str, dict[str, Any]] = dict.fromkeys((400, 401, 404, 405, 408, 413, 429, 500, 503), _ERROR)

ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def with_bodies(document: dict[str, Any], kinds: Sequence[type[msgspec.Struct]]) -> dict[str, Any]:
    """The document with the schemas of the request bodies, and without FastAPI's own form of errors."""
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REF)
    components = document.setdefault("components", {}).setdefault("schemas", {})
    components.update(schemas)
    components["Error"] = ERROR_SCHEMA
    for name in ("HTTPValidationError", "ValidationError"):
        components.pop(name, None)
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    return document
