"""From request bodies to token ids, without holding up the event loop and in bounded time."""

from __future__ import annotations

import asyncio
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..text.chat import ChatTemplate, render
from ..text.tokenizer import Tokenizer
from .decoding import shorten
from .errors import ApiError, invalid
from .protocol import ChatRequest, TokenizeRequest
from .validation import MAX_PROMPTS, Limits, check_prompt_length, check_token_ids

# Shorter texts are tokenized at once: a thread would cost more than it saves.
INLINE_CHARACTERS = 4096
MAX_MESSAGES = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt as token ids, and as text where it was one."""

    token_ids: list[int]
    text: str | None


class Prompter:
    """Tokenizes for the API. One thread does the long texts, so that they cannot take all of a machine's cores."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None, limits: Limits) -> None:
        self.tokenizer, self.limits = tokenizer, limits
        self._template = template
        self._thread = ThreadPoolExecutor(1, "tokenize")
        longest = max((len(tokenizer.token_text(i)) for i in range(tokenizer.vocab_size)), default=1)
        self._longest_token = max(1, longest)

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def template_text(self) -> str:
        """The chat template's source; empty where there is none."""
        if self._template is not None:
            return self._template.text
        own = self.tokenizer.chat_templates
        return own.get("tool_use") or own.get("default") or ""

    async def completion_prompts(self, prompt: Any, special: bool, keep: int | None = None) -> list[PromptText]:
        """The prompts of a completion request: one text, one list of ids, or a list of either.

        `keep`: cut each prompt to its last tokens.

        Raises:
            ApiError: 400; wrong form, empty, unknown ids, or too long for the window.
        """
        found = []
        for one in _separate(prompt):
            if isinstance(one, str):
                ids = await self.encode(one, special, keep is None)
                found.append(PromptText(self._checked(ids, keep), one))
            else:
                found.append(PromptText(self._checked(one, keep), None))
        return found

    async def chat_prompt(self, request: ChatRequest | TokenizeRequest, special: bool) -> PromptText:
        """The prompt of a chat, from its messages and the template.

        Raises:
            ApiError: 400; wrong messages, no template, the template's own objection, or too long for the window.
        """
        text = await self.render(request)
        keep = getattr(request, "truncate_prompt_tokens", None)
        return PromptText(self._checked(await self.encode(text, special, keep is None), keep), text)

    async def render(self, request: ChatRequest | TokenizeRequest) -> str:
        """The text of a chat's prompt.

        Raises:
            ApiError: 400; wrong messages, no template, or the template's own objection.
        """
        if _characters(request.messages or []) <= INLINE_CHARACTERS:
            return self._render(request)
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._render, request)

    def _render(self, request: ChatRequest | TokenizeRequest) -> str:
        _check_messages(request.messages or [])
        if request.chat_template is not None:
            # A template is a program; one that comes with a request could keep the server busy for ever.
            raise invalid("chat_template: is not taken from requests; start the server with --chat-template",
                          "chat_template")  # fmt: skip
        continues = bool(request.continue_final_message)
        generation = request.add_generation_prompt
        return render(
            self.tokenizer,
            request.messages or [],
            tools=tools_of(request),
            template=self._template,
            add_generation_prompt=not continues if generation is None else generation,
            continue_final_message=continues,
            documents=getattr(request, "documents", None),
            variables=request.chat_template_kwargs,
        )

    async def encode(self, text: str, special: bool, bounded: bool = True) -> list[int]:
        """Token ids of a text.

        Raises:
            ApiError: 400; `bounded`, and the text is so long that no tokenization of it can fit into the window.
        """
        least = len(text) // self._longest_token
        if bounded:
            check_prompt_length(least, self.limits, at_least=True)
        if len(text) <= INLINE_CHARACTERS:
            return self.tokenizer.encode(text, special)
        loop = asyncio.get_running_loop()
        # Of the tokenizer's calls, the one for several texts lets other threads run meanwhile.
        return (await loop.run_in_executor(self._thread, self.tokenizer.encode_batch, [text], special))[0]

    def _checked(self, ids: list[int], keep: int | None) -> list[int]:
        ids = ids if keep is None else ids[-keep:]
        if not ids:
            raise invalid("prompt: is empty; it needs at least one token", "prompt", "empty_prompt")
        check_prompt_length(len(ids), self.limits)
        check_token_ids("prompt", ids, self.limits)
        return ids


def tools_of(request: ChatRequest | TokenizeRequest) -> list[dict[str, Any]] | None:
    """The tools that the model may be told of."""
    if isinstance(request, ChatRequest) and request.tool_choice == "none":
        return None
    return request.tools


def _separate(prompt: Any) -> list[str | list[int]]:
    """The prompts in `prompt`, in order."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(item) for item in prompt}
    if kinds == {int}:
        return [prompt]
    if len(kinds) != 1:
        problem = "is empty" if not kinds else "must hold texts, token ids, or lists of token ids, not several of them"
        raise invalid(f"prompt: {shorten(prompt)}: {problem}", "prompt", "invalid_value")
    if len(prompt) > MAX_PROMPTS:
        raise invalid(f"prompt: {len(prompt)} prompts in one request; at most {MAX_PROMPTS}", "prompt")
    return list(prompt)


def _check_messages(messages: list[dict[str, Any]]) -> None:
    """What the template's own checks do not look at."""
    if not 0 < len(messages) <= MAX_MESSAGES:
        raise invalid(f"messages: {len(messages)} messages; 1 to {MAX_MESSAGES} are needed", "messages")
    for number, message in enumerate(messages):
        if not message.get("role"):
            raise _wrong(f"messages[{number}].role", message.get("role"), "must be a text such as user")
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            raise _wrong(f"messages[{number}].tool_calls", calls, "must be a list of objects")


def _characters(messages: list[dict[str, Any]]) -> int:
    """About how much text a template has to handle."""
    return sum(len(c) if isinstance(c := m.get("content"), str) else 1024 for m in messages)


def _wrong(name: str, value: object, problem: str) -> ApiError:
    return invalid(f"{name}: {shorten(value)}: {problem}", name, "invalid_value")
