"""Calls that a request insists on: the answer's form is fixed by a schema, so that it is nothing but the call."""

from __future__ import annotations

from ..parts import Parts
from .base import CallEmitter, CallList
from .call import begin, more, new_call_id


class NamedParser:
    """The answer is the arguments of one function."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def push(self, text: str, finished: bool) -> Parts:
        """Take the next piece."""
        if not text:
            return Parts()
        calls = [more(0, text)]
        if not self._begun:
            self._begun = True
            calls = [begin(0, new_call_id(), self._name, text)]
        return Parts(tool_calls=calls)


class ListParser:
    """The answer is a list of `{"name": ..., "arguments": {...}}`."""

    def __init__(self) -> None:
        self._calls = CallList(CallEmitter())

    def push(self, text: str, finished: bool) -> Parts:
        """Take the next piece."""
        parts = Parts()
        self._calls.push(text, parts)
        if finished:
            self._calls.finish(parts)
        return parts
