"""What the formats share: looking for marks in a text that comes in pieces, and telling calls."""

from __future__ import annotations

from collections.abc import Callable

from ..parts import Parts
from .call import CallReader, begin, more, new_call_id


def held_back(text: str, marks: tuple[str, ...]) -> int:
    """How many of the last characters may be the beginning of a mark."""
    longest = max(map(len, marks))
    for size in range(min(longest - 1, len(text)), 0, -1):
        if any(mark.startswith(text[-size:]) for mark in marks):
            return size
    return 0


class CallEmitter:
    """Turns what a `CallReader` has read into pieces of tool calls, numbered in the order of the calls."""

    def __init__(self, new_id: Callable[[], str] = new_call_id) -> None:
        self._new_id = new_id
        self._index = -1
        self._reader: CallReader | None = None

    def emit(self, reader: CallReader, parts: Parts) -> None:
        """Add to `parts` what is new of the call that `reader` reads."""
        if reader.name is None:
            return
        if reader is not self._reader:
            self._reader = reader
            self._index += 1
            parts.tool_calls.append(begin(self._index, self._new_id(), reader.name))
        if arguments := reader.unsent_arguments():
            parts.tool_calls.append(more(self._index, arguments))


# What may stand between two calls without meaning anything.
SEPARATORS = " \t\r\n;,[]"


class CallList:
    """Reads calls one after the other, such as `[{...}, {...}]` or `{...}; {...}`; what else there is, is content."""

    def __init__(self, emitter: CallEmitter) -> None:
        self._emitter = emitter
        self._reader: CallReader | None = None
        # Text outside of objects that has not been emitted: where a call follows, separators at its end are not.
        self._between: list[str] = []
        self._after_text = False

    def push(self, text: str, parts: Parts) -> None:
        """Take the next piece."""
        for character in text:
            if self._reader is None and character == "{":
                self._tell_between(parts)
                self._reader = CallReader()
            if self._reader is None:
                self._between.append(character)
                continue
            self._reader.step(character)
            if self._reader.done:
                self._end_object(self._reader, parts)
        if self._reader is None:
            self._tell_between(parts)
        else:
            self._emitter.emit(self._reader, parts)

    def finish(self, parts: Parts) -> None:
        """The text has ended: an object that never named a function is content."""
        if self._reader is not None:
            self._end_object(self._reader, parts)
        elif self._after_text:
            parts.content += "".join(self._between)
        self._between.clear()
        self._after_text = False

    def _tell_between(self, parts: Parts) -> None:
        text = "".join(self._between)
        told = text.rstrip(SEPARATORS)
        parts.content += told
        self._between = list(text[len(told) :])
        self._after_text = self._after_text or bool(told)

    def _end_object(self, reader: CallReader, parts: Parts) -> None:
        self._emitter.emit(reader, parts)
        self._after_text = reader.name is None
        if self._after_text:
            parts.content += "".join(self._between) + reader.raw
        self._reader = None
        self._between.clear()
