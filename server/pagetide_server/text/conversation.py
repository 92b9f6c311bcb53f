"""The messages of a chat in the form that templates read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pagetide_spec.errors import PagetideError

# Templates of one family read a message's reasoning under one of these names; clients send any of them.
_REASONING = ("reasoning_content", "reasoning", "thinking")


class ChatTemplateError(PagetideError):
    """A chat cannot be made into a prompt; the client must change the request. Says what the template said."""


def normalized(messages: Sequence[Mapping[str, Any]], takes_parts: bool, takes_text: bool) -> list[dict[str, Any]]:
    """Copies of `messages` as a template wants them.

    Fields without a value are left out, content is text or parts as the template reads it, and the arguments of tool
    calls, which the API carries as JSON text, become objects.

    Raises:
        ChatTemplateError: names the message and what is wrong with it.
    """
    return [_message(message, f"messages[{i}]", takes_parts, takes_text) for i, message in enumerate(messages)]


def with_mark(conversation: list[dict[str, Any]], mark: str) -> list[dict[str, Any]]:
    """The conversation with `mark` behind the text of its last message.

    Raises:
        ChatTemplateError: the last message has no text to continue.
    """
    last = conversation[-1] if conversation else {}
    content = last.get("content")
    if isinstance(content, str):
        return [*conversation[:-1], {**last, "content": content + mark}]
    if isinstance(content, list) and content:
        part = {**content[-1], "text": content[-1]["text"] + mark}
        return [*conversation[:-1], {**last, "content": [*content[:-1], part]}]
    raise ChatTemplateError("continue_final_message: true: the last message has no text to continue")


def _message(message: Mapping[str, Any], where: str, takes_parts: bool, takes_text: bool) -> dict[str, Any]:
    result = {name: value for name, value in message.items() if value is not None}
    if not isinstance(result.get("role"), str):
        raise ChatTemplateError(f"{where}.role: must be text")
    if "content" in result:
        result["content"] = _content(result["content"], f"{where}.content", takes_parts, takes_text)
    if "tool_calls" in result:
        result["tool_calls"] = [
            _tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(result["tool_calls"])
        ]
    return _with_reasoning(result)


def _content(content: Any, where: str, takes_parts: bool, takes_text: bool) -> Any:
    """Message content as text, or as text parts where only those are understood or were given."""
    if isinstance(content, str):
        return content if takes_text else [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise ChatTemplateError(f"{where}: must be text or a list of parts")
    parts = [_part(part, f"{where}[{i}]") for i, part in enumerate(content)]
    return parts if takes_parts else "\n".join(part["text"] for part in parts)


def _part(part: Any, where: str) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in ("text", "refusal"):
        raise ChatTemplateError(f"{where}.type: {kind!r}: this server reads text only; must be text")
    text = part.get(kind)
    if not isinstance(text, str):
        raise ChatTemplateError(f"{where}.{kind}: must be text")
    return {"type": "text", "text": text}


def _tool_call(call: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The call with its arguments as an object."""
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(arguments := function.get("arguments"), str):
        return dict(call)
    try:
        parsed = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ChatTemplateError(f"{where}.function.arguments: is no JSON: {error}") from error
    return {**call, "function": {**function, "arguments": parsed}}


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    given = next((message[name] for name in _REASONING if name in message), None)
    return message if given is None else {"reasoning_content": given, "thinking": given, **message}
