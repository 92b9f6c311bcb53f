"""Mistral: `[TOOL_CALLS]`, then a list of `{"name": ..., "arguments": {...}}`, or `name{...}`, or `name[ARGS]{...}`.

The newer forms repeat the mark before each call. Ids are nine letters or digits, which Mistral's templates insist on.
"""

from __future__ import annotations

import secrets
import string

from ..parts import Parts
from .base import CallEmitter, CallList, held_back
from .call import JsonScanner, begin, more

MARK, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_ALPHABET = string.ascii_letters + string.digits


def new_short_id() -> str:
    """Nine letters or digits."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(9))


class MistralParser:
    """See the module. Text before the first mark is content."""

    def __init__(self) -> None:
        self._buffer = ""
        self._called = False
        self._list: CallList | None = None
        self._named = _NamedCalls()

    def push(self, text: str, finished: bool) -> Parts:
        """Take the next piece."""
        parts = Parts()
        self._buffer += text
        if not self._called:
            self._look_for_mark(parts, finished)
        if self._called and self._buffer:
            self._read(parts)
        if finished:
            (self._list or self._named).finish(parts)
        return parts

    def _look_for_mark(self, parts: Parts, finished: bool) -> None:
        before, mark, after = self._buffer.partition(MARK)
        if mark:
            parts.content += before.rstrip()
            self._buffer, self._called = after, True
            return
        free = before if finished else before[: len(before) - held_back(before, (MARK,))].rstrip()
        parts.content += free
        self._buffer = before[len(free) :]

    def _read(self, parts: Parts) -> None:
        text, self._buffer = self._buffer, ""
        if self._list is None and not self._named.begun and not (text := text.lstrip()):
            return
        if self._list is None and not self._named.begun and text[0] in "[{":
            self._list = CallList(CallEmitter(new_short_id))
        if self._list is not None:
            self._list.push(text, parts)
        else:
            self._named.push(text, parts)


class _NamedCalls:
    """Reads `name{...}[TOOL_CALLS]name{...}`: between two argument objects stands nothing but the next name."""

    def __init__(self) -> None:
        self.begun = False
        self._index = -1
        self._name = ""
        self._scanner = JsonScanner()

    def push(self, text: str, parts: Parts) -> None:
        """Take the next piece."""
        self.begun = True
        arguments = ""
        for character in text:
            before = self._scanner.depth
            if before == 0 and character != "{":
                self._name += character
                continue
            self._scanner.step(character)
            if before == 0:
                self._open(parts)
            arguments += character
            if self._scanner.depth == 0:
                parts.tool_calls.append(more(self._index, arguments))
                arguments = ""
        if arguments:
            parts.tool_calls.append(more(self._index, arguments))

    def finish(self, parts: Parts) -> None:
        """The text has ended: what names no function that is called is content."""
        parts.content += self._name.strip() if self._index < 0 else ""

    def _open(self, parts: Parts) -> None:
        name = self._name.replace(MARK, "").split(CALL_ID)[0].removesuffix(ARGS).strip()
        self._index += 1
        self._name = ""
        parts.tool_calls.append(begin(self._index, new_short_id(), name))
