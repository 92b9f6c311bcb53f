"""A chat answer's text divided: what is content, what is reasoning, what are tool calls."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from ..engine.messages import TokenLogprobs
from .answer import Delta
from .replies import ToolCall, ToolFunction


@dataclasses.dataclass(slots=True)
class Parts:
    """What one piece of text brought. Pieces of tool calls add up by their `index`."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = dataclasses.field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)

    def whole_calls(self) -> list[ToolCall]:
        """The tool calls with their pieces joined, as a whole answer tells them: without `index`."""
        whole: dict[object, ToolCall] = {}
        for piece in self.tool_calls:
            call = whole.get(piece.index)
            if call is None:
                function = ToolFunction(piece.function.name, piece.function.arguments or "")
                whole[piece.index] = ToolCall(id=piece.id, type="function", function=function)
            elif piece.function.arguments:
                call.function.arguments = str(call.function.arguments or "") + str(piece.function.arguments)
        return list(whole.values())


class TextParser(Protocol):
    """Divides a text that comes in pieces; the parts add up to the same whatever the pieces were."""

    def push(self, text: str, finished: bool) -> Parts:
        """Take the next piece; `finished`: it is the last one."""


class Splitter:
    """One answer's parser, and the tokens whose text it still holds back."""

    def __init__(
        self,
        parsers: list[TextParser],
        keeps_reasoning: bool = True,
        one_call: bool = False,
        tells_calls: bool = True,
    ) -> None:
        """Parsers in order: each gets the content that the one before left over.

        `one_call` drops all calls but the first; without `tells_calls` the finish reason stays as it is, which is what
        OpenAI does where a request has named the function.
        """
        self._parsers = parsers
        self._keeps_reasoning, self._one_call, self._tells_calls = keeps_reasoning, one_call, tells_calls
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._called = False
        self.role_due = False

    def push(self, text: str, finished: bool) -> Parts:
        """The parts of the next piece of text."""
        parts = Parts(content=text)
        for parser in self._parsers:
            found = parser.push(parts.content, finished)
            parts = Parts(found.content, parts.reasoning + found.reasoning, parts.tool_calls + found.tool_calls)
        if not self._keeps_reasoning:
            parts.reasoning = ""
        if self._one_call:
            parts.tool_calls = [call for call in parts.tool_calls if call.index == 0]
        self._called = self._called or bool(parts.tool_calls)
        return parts

    def hold(self, delta: Delta) -> None:
        """Keep a delta's tokens until their text, or the end, is sent."""
        self._token_ids += delta.token_ids
        self._logprobs += delta.logprobs

    def release(self) -> tuple[list[int], list[TokenLogprobs]]:
        """The tokens held so far."""
        held = self._token_ids, self._logprobs
        self._token_ids, self._logprobs = [], []
        return held

    def reason(self, finish_reason: str | None) -> str | None:
        """The finish reason, which tells of tool calls."""
        return "tool_calls" if finish_reason == "stop" and self._called and self._tells_calls else finish_reason
