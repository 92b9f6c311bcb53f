"""What the formats share: looking for marks in a text that comes in pieces, and telling calls."""

from __future__ import annotations

from collections.abc import Callable

from ..parts import Parts
from .call import CallReader, begin, more, new_call_id

# What may stand around and between the calls of a list.
BETWEEN = " \t\r\n[],;"


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


class CallList:
    """Reads calls one after the other, such as `[{...}, {...}]` or `{...}; {...}`, whatever stands between them."""

    def __init__(self, emitter: CallEmitter) -> None:
        self._emitter = emitter
        self._reader: CallReader | None = None
        self._outside = ""
        self._opened = False

    def push(self, text: str, parts: Parts) -> None:
        """Take the next piece."""
        for character in text:
            if self._reader is None and character == "{":
                self._reader, self._opened = CallReader(), True
            if self._reader is not None:
                self._reader.step(character)
                if self._reader.done:
                    self._end_call(parts)
            elif not self._opened:
                self._outside += character
        if self._reader is not None:
            self._emitter.emit(self._reader, parts)

    def _end_call(self, parts: Parts) -> None:
        reader, self._reader = self._reader, None
        if reader is None:
            return
        self._emitter.emit(reader, parts)
        if reader.name is None:
            parts.content += reader.raw

    def finish(self, parts: Parts) -> None:
        """The text has ended: an object that never named a function is content, and so is text without an object."""
        if self._reader is not None and self._reader.name is None:
            parts.content += self._reader.raw
        if not self._opened and self._outside.strip(BETWEEN):
            parts.content += self._outside.strip()
        self._reader, self._outside, self._opened = None, "", False
