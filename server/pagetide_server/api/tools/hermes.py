"""Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them among text."""

from __future__ import annotations

from ..parts import Parts
from .base import CallEmitter, CallList, held_back

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser:
    """See the module."""

    def __init__(self) -> None:
        self._buffer = ""
        self._inside = False
        self._called = False
        self._calls = CallList(CallEmitter())

    def push(self, text: str, finished: bool) -> Parts:
        """Take the next piece."""
        self._buffer += text
        parts = Parts()
        while self._inside_step(parts) if self._inside else self._outside_step(parts):
            pass
        if finished:
            self._finish(parts)
        return parts

    def _outside_step(self, parts: Parts) -> bool:
        """Give out text up to the next call; True at one."""
        before, mark, after = self._buffer.partition(OPEN)
        if mark:
            parts.content += before.rstrip()
            self._buffer, self._inside = after, True
            return True
        # Blank space before a call is no content; before text it is.
        free = before[: len(before) - held_back(before, (OPEN,))].rstrip()
        parts.content += free
        self._buffer = before[len(free) :]
        return False

    def _inside_step(self, parts: Parts) -> bool:
        """Read a call's text; True at its end."""
        inner, mark, after = self._buffer.partition(CLOSE)
        if mark:
            self._calls.push(inner, parts)
            self._calls.finish(parts)
            self._buffer, self._inside, self._called = after, False, True
            return True
        keep = held_back(inner, (CLOSE,))
        self._calls.push(inner[: len(inner) - keep], parts)
        self._buffer = inner[len(inner) - keep :]
        return False

    def _finish(self, parts: Parts) -> None:
        if self._inside:
            self._calls.push(self._buffer, parts)
            self._calls.finish(parts)
        elif self._buffer.strip() or not self._called:
            parts.content += self._buffer
        self._buffer = ""
