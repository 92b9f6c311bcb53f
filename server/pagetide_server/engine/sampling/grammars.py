"""From a structure as clients write it to a grammar in llguidance's language."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import llguidance
import msgspec

from pagetide_spec.errors import PagetideError

from ...wire.messages import Structure

# A long regular expression costs time in every step; other structures mostly when they are compiled.
MAX_BYTES = {"regex": 1 << 15}
MAX_OTHER_BYTES = 1 << 18

Result = TypeVar("Result")


class StructureError(PagetideError):
    """A structure cannot be followed: it is wrong, unsupported or too large. The client must change it."""


def grammar_text(structure: Structure) -> str:
    """The grammar of a structure.

    Raises:
        StructureError: it is too long, or not of the form that its kind needs.
    """
    kind = structure.kind
    size, most = len(structure.value.encode(errors="surrogatepass")), MAX_BYTES.get(kind, MAX_OTHER_BYTES)
    if size > most:
        raise StructureError(f"{kind}: is {size} bytes long; at most {most} are accepted")
    return guarded(kind, lambda: _GRAMMAR_TEXT[kind](structure.value))


def parts(structure: Structure) -> list[tuple[str, Structure]]:
    """Where a structure is a list of calls, as a request with `tool_choice` "required" asks for it: each function's
    name, and the structure of its arguments."""
    try:
        calls = msgspec.json.decode(structure.value, type=_CallList).items.anyOf
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []
    found = [call.properties for call in calls]
    return [(call.name.const, Structure(kind="json", value=bytes(call.arguments).decode())) for call in found]


class _Name(msgspec.Struct):
    const: str


class _Properties(msgspec.Struct):
    name: _Name
    arguments: msgspec.Raw


class _Call(msgspec.Struct):
    properties: _Properties


class _Calls(msgspec.Struct):
    anyOf: list[_Call]


class _CallList(msgspec.Struct):
    items: _Calls


def guarded(kind: str, work: Callable[[], Result]) -> Result:
    """The result of `work`; whatever the library or Python makes of a bad grammar is a StructureError."""
    try:
        return work()
    except StructureError:
        raise
    # A panic inside the library arrives as an exception that is not an Exception.
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise StructureError(f"{kind}: {one_line(str(error) or type(error).__name__)}") from error


def one_line(message: str) -> str:
    """A library's message, fit for an error of ours."""
    text = " ".join(message.split())
    return text if len(text) <= 300 else text[:297] + "..."


def _json_schema(value: str) -> str:
    return str(llguidance.LLMatcher.grammar_from_json_schema(value, defaults=_JSON_DEFAULTS, overrides=_JSON_OPTIONS))


# oneOf is followed as anyOf: a token mask cannot count how many branches a finished document has.
_JSON_OPTIONS: Any = {"coerce_one_of": True}
# Compact, spaced, or a line for each part with its indentation; no other layout: a small model loses itself in blanks.
_JSON_DEFAULTS: Any = {"whitespace_pattern": r"( |\r?\n( {0,16}|\t{0,4}))?"}


def _regex(value: str) -> str:
    return str(llguidance.LLMatcher.grammar_from_regex(value))


def _choice(value: str) -> str:
    choices = json.loads(value)
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise StructureError("choice: must be a list of texts, none of them empty")
    # One terminal, so that thousands of choices are states of one automaton. Its strings are JSON strings.
    alternatives = " | ".join(map(json.dumps, choices))
    return str(llguidance.LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {alternatives}"))


_RULE_MARKS = re.compile(r"^[ \t]*[?!]+(?=[a-z_]\w*(\.\d+)?[ \t]*:)", re.MULTILINE)


def _grammar(value: str) -> str:
    """Lark as it is; EBNF as llama.cpp writes it (`root ::= ...`) is translated."""
    if "::=" in value:
        return str(llguidance.grammar_from("gbnf", value))
    # `?rule` and `!rule` shape Lark's parse tree only.
    return str(llguidance.LLMatcher.grammar_from_lark(_RULE_MARKS.sub("", value)))


_GRAMMAR_TEXT: dict[str, Callable[[str], str]] = {
    "json": _json_schema,
    "json_object": lambda value: _json_schema('{"type": "object"}'),
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
}
