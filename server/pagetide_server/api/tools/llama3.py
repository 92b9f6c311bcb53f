"""Llama 3: an answer that is nothing but `{"name": ..., "parameters": {...}}`, several divided by semicolons.

It may begin with `<|python_tag|>`. Models also write other objects, and code behind the tag: these are content.
"""

from __future__ import annotations

from ..parts import Parts
from .base import CallEmitter, CallList

TAG = "<|python_tag|>"


class Llama3Parser:
    """See the module. An answer that begins in any other way is content."""

    def __init__(self) -> None:
        self._buffer = ""
        self._is_call: bool | None = None
        self._calls = CallList(CallEmitter())

    def push(self, text: str, finished: bool) -> Parts:
        """Take the next piece."""
        parts = Parts()
        if self._is_call is None:
            self._buffer += text
            self._decide(finished)
            text, self._buffer = ("", self._buffer) if self._is_call is None else (self._buffer, "")
        if self._is_call:
            self._calls.push(text, parts)
            if finished:
                self._calls.finish(parts)
        elif self._is_call is False:
            parts.content = text
        return parts

    def _decide(self, finished: bool) -> None:
        begun = self._buffer.lstrip()
        if begun.startswith(("{", TAG)):
            self._is_call, self._buffer = True, begun.removeprefix(TAG)
        elif finished or not TAG.startswith(begun):
            self._is_call = False
