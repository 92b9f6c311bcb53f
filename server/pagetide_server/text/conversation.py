"""The messages of a chat in the form that templates read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pagetide_spec.errors import PagetideError

# Templates of one family read a message's reasoning under one of these names; clients send any of them.
_REASONING = ("reasoning_content", "reasoning", "thinking")


class ChatTemplateError(PagetideError):
    """A chat cannot be made into a prompt; the client must change the request. Says what the template said.

    Attributes:
        field: what of the request is wrong, such as messages[0].role; None where the template refused it as a whole.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        self.field = field
        super().__init__(message)


def normalized(messages: Sequence[Mapping[str, Any]], takes_parts: bool, takes_text: bool) -> list[dict[str, Any]]:
    """Copies of `messages` as a template wants them.

    Fields without a value are left out, content is text or parts as the template reads it, and the arguments of tool
    calls, which the API carries as JSON text, become objects.

    Raises:
        ChatTemplateError: names the message and what is wrong with it.
    """
    if not (given := objects(messages, "messages")):
        raise _wrong("messages", "is empty; give at least one message")
    return [_message(message, f"messages[{i}]", takes_parts, takes_text) for i, message in enumerate(given)]


def objects(given: Any, where: str) -> list[Mapping[str, Any]]:
    """A list of objects of the request as such; None is an empty one.

    Raises:
        ChatTemplateError: it is none.
    """
    if given is None:
        return []
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise _wrong(where, f"must be a list of objects, not {given!r:.80}")
    for i, one in enumerate(given):
        if not isinstance(one, Mapping):
            raise _wrong(f"{where}[{i}]", f"must be an object, not {one!r:.80}")
    return list(given)


def _wrong(where: str, problem: str) -> ChatTemplateError:
    return ChatTemplateError(f"{where}: {problem}", where)


def with_mark(conversation: list[dict[str, Any]], mark: str) -> list[dict[str, Any]]:
    """The conversation with `mark` behind the text of its last message.

    Raises:
        ChatTemplateError: the last message has no text to continue.
    """
    last = conversation[-1]
    content = last.get("content")
    if isinstance(content, str):
        return [*conversation[:-1], {**last, "content": content + mark}]
    if isinstance(content, list) and content:
        part = {**content[-1], "text": content[-1]["text"] + mark}
        return [*conversation[:-1], {**last, "content": [*content[:-1], part]}]
    raise ChatTemplateError("continue_final_message: true: the last message has no text to continue")


def _message(message: Mapping[str, Any], where: str, takes_parts: bool, takes_text: bool) -> dict[str, Any]:
    result = {name: value for name, value in message.items() if value is not None}
    role = result.get("role")
    if not isinstance(role, str) or not role:
        raise _wrong(f"{where}.role", f"must be a text such as user, not {role!r:.80}")
    if "content" in result:
        result["content"] = _content(result["content"], f"{where}.content", takes_parts, takes_text)
    if "tool_calls" in result:
        place = f"{where}.tool_calls"
        calls = enumerate(objects(result["tool_calls"], place))
        result["tool_calls"] = [_tool_call(call, f"{place}[{i}]") for i, call in calls]
    return _with_reasoning(result)


def _content(content: Any, where: str, takes_parts: bool, takes_text: bool) -> Any:
    """Message content as text, or as text parts where only those are understood or were given."""
    if isinstance(content, str):
        return content if takes_text else [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise _wrong(where, "must be text or a list of parts")
    parts = [_part(part, f"{where}[{i}]") for i, part in enumerate(content)]
    return parts if takes_parts else "\n".join(part["text"] for part in parts)


def _part(part: Any, where: str) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in ("text", "refusal"):
        raise _wrong(f"{where}.type", f"{kind!r}: this server reads text only; must be text")
    text = part.get(kind)
    if not isinstance(text, str):
        raise _wrong(f"{where}.{kind}", "must be text")
    return {"type": "text", "text": text}


def _tool_call(call: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The call with its arguments as an object."""
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(arguments := function.get("arguments"), str):
        return dict(call)
    try:
        parsed = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError) as error:
        raise _wrong(f"{where}.function.arguments", f"is no JSON: {error}") from error
    return {**call, "function": {**function, "arguments": parsed}}


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    given = next((message[name] for name in _REASONING if name in message), None)
    return message if given is None else {"reasoning_content": given, "thinking": given, **message}
