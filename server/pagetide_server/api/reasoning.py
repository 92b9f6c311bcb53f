"""Reasoning that a model writes between `<think>` and `</think>` before its answer."""

from __future__ import annotations

from .parts import Parts
from .tools.base import held_back

OPEN, CLOSE = "<think>", "</think>"


class ThinkParser:
    """Divides reasoning from content.

    Args:
        opened: the prompt has ended with `<think>`, so that the answer begins with reasoning.
    """

    def __init__(self, opened: bool) -> None:
        self._opened = opened
        self._state = "begin"
        self._buffer = ""

    def push(self, text: str, finished: bool) -> Parts:
        """Take the next piece."""
        self._buffer += text
        parts = Parts()
        if self._state == "begin":
            self._begin(finished)
        if self._state == "opened" and (self._buffer.strip("\n") or finished):
            self._buffer, self._state = self._buffer.lstrip("\n"), "reasoning"
        if self._state == "reasoning":
            self._reason(parts, finished)
        if self._state == "gap" and (self._buffer.strip("\n") or finished):
            self._buffer, self._state = self._buffer.lstrip("\n"), "content"
        if self._state == "content":
            parts.content, self._buffer = self._buffer, ""
        return parts

    def _begin(self, finished: bool) -> None:
        """Decide how the answer begins; a model may repeat a tag that the prompt has opened."""
        begun = self._buffer.lstrip()
        if begun.startswith(OPEN):
            self._buffer, self._state = begun.removeprefix(OPEN), "opened"
        elif finished or not OPEN.startswith(begun):
            self._state = "reasoning" if self._opened else "content"

    def _reason(self, parts: Parts, finished: bool) -> None:
        inner, mark, after = self._buffer.partition(CLOSE)
        if mark:
            parts.reasoning += inner.rstrip("\n")
            self._buffer, self._state = after, "gap"
            return
        # Line ends are held back too: those before the closing tag are no part of the reasoning.
        free = inner if finished else inner[: len(inner) - held_back(inner, (CLOSE,))].rstrip("\n")
        parts.reasoning += free
        self._buffer = inner[len(free) :]
