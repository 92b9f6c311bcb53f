"""A chat answer's text divided: what is content, what is reasoning, what are tool calls."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from .responses import ToolCall, ToolFunction


@dataclasses.dataclass(slots=True)
class Parts:
    """What one piece of text brought. Pieces of tool calls add up by their `index`."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = dataclasses.field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)

    def whole_calls(self) -> list[ToolCall]:
        """The tool calls with their pieces joined, as a whole answer has them: without `index`."""
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
