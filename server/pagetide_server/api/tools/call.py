"""One tool call as a JSON object, {"name": ..., "arguments": {...}}, read character by character."""

from __future__ import annotations

import enum
import secrets

import msgspec

from ..responses import ToolCall, ToolFunction

ARGUMENT_KEYS = ("arguments", "parameters")


def new_call_id() -> str:
    """A fresh id such as call_0f3a..."""
    return f"call_{secrets.token_hex(12)}"


def begin(index: int, call_id: str, name: str, arguments: str = "") -> ToolCall:
    """The first piece of a call."""
    return ToolCall(index=index, id=call_id, type="function", function=ToolFunction(name, arguments))


def more(index: int, arguments: str) -> ToolCall:
    """A later piece of a call: more of its arguments."""
    return ToolCall(index=index, function=ToolFunction(arguments=arguments))


class _At(enum.Enum):
    KEY = "before or in a key"
    COLON = "between a key and its value"
    VALUE = "in a value"


class JsonScanner:
    """Follows the nesting of JSON text: when an object or list that began at depth 0 has ended."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self._escaped = False

    def step(self, character: str) -> None:
        """Take the next character."""
        if self._escaped:
            self._escaped = False
        elif self.in_string:
            self._escaped = character == "\\"
            self.in_string = character != '"'
        elif character == '"':
            self.in_string = True
        elif character in "{[":
            self.depth += 1
        elif character in "}]":
            self.depth -= 1


class CallReader:
    """Reads one call. Its name is emitted once known; arguments that are an object are then emitted as they come.

    Attributes:
        done: the object has ended.
        name: the function's name, or None while unknown.
    """

    def __init__(self) -> None:
        self.done = False
        self.name: str | None = None
        self._raw: list[str] = []
        self._scanner = JsonScanner()
        self._at = _At.KEY
        self._key = ""
        self._value: list[str] = []
        self._is_object = False
        self._has_arguments = False
        self._unsent: list[str] = []

    @property
    def raw(self) -> str:
        """All text so far: what to give out as content should this turn out to be no call."""
        return "".join(self._raw)

    def step(self, character: str) -> None:
        """Take the next character; the first one is the opening brace."""
        self._raw.append(character)
        scanner = self._scanner
        before, was_string = scanner.depth, scanner.in_string
        scanner.step(character)
        if before == 0:
            return
        if before == 1 and not was_string and character in ",}":
            self._end_value()
            self.done = scanner.depth == 0
        elif self._at is _At.KEY:
            self._step_key(character, was_string)
        elif self._at is _At.COLON:
            self._at = _At.VALUE if character == ":" else self._at
        else:
            self._step_value(character, before)

    def unsent_arguments(self) -> str:
        """The arguments' text that has come since the last call of this; nothing before the name is known."""
        if self.name is None:
            return ""
        text = "".join(self._unsent)
        self._unsent.clear()
        return text

    def _step_key(self, character: str, was_string: bool) -> None:
        if was_string and not self._scanner.in_string:
            self._at = _At.COLON
        elif was_string:
            self._key += character

    def _step_value(self, character: str, depth: int) -> None:
        if not self._value and not self._is_object and self._key in ARGUMENT_KEYS and character == "{":
            self._is_object = self._has_arguments = True
        if not self._is_object:
            if self._value or not character.isspace():
                self._value.append(character)
        elif depth > 1 or character == "{":
            self._unsent.append(character)

    def _end_value(self) -> None:
        value = "".join(self._value).strip()
        if self._key == "name":
            self.name = _text(value)
        elif self._key in ARGUMENT_KEYS and not self._is_object:
            # Some models write the arguments as a text that holds JSON.
            self._unsent.append(_text(value) or "{}")
            self._has_arguments = True
        if self._scanner.depth == 0 and not self._has_arguments:
            self._unsent.append("{}")
        self._at, self._key, self._is_object = _At.KEY, "", False
        self._value.clear()


def _text(value: str) -> str | None:
    """A JSON text's content; None if it is none."""
    try:
        found = msgspec.json.decode(value)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, str) else None
