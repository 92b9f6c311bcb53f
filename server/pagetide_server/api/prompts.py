"""From request bodies to token ids, without holding up the event loop and in bounded time."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ..text.chat import Templates, render
from ..text.tokenizer import FORMS, Tokenizer
from .errors import invalid, wrong
from .protocol import ChatRequest, TokenizeRequest
from .validation import MAX_PROMPTS, Limits, check_prompt_length, check_token_ids

T = TypeVar("T")

# What a request has less of is tokenized at once: a thread would cost more than it saves.
INLINE_CHARACTERS = 4096
MAX_MESSAGES = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt as token ids, and as text where it was one."""

    token_ids: list[int]
    text: str | None


class Prompter:
    """Tokenizes for the API. One thread does the long texts, so that they cannot take all of a machine's cores."""

    def __init__(self, tokenizer: Tokenizer, templates: Templates, limits: Limits) -> None:
        self.tokenizer, self.templates, self.limits = tokenizer, templates, limits
        self._thread = ThreadPoolExecutor(1, "tokenize")
        longest = max((len(tokenizer.token_text(i)) for i in range(tokenizer.vocab_size)), default=1)
        self._longest_token = max(1, longest)

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def completion_prompts(
        self, prompt: Any, special: bool, keep: int | None = None, room: int = 1
    ) -> list[PromptText]:
        """The prompts of a completion request: one text, one list of ids, or a list of either.

        `keep`: cut each prompt to its last tokens. `room`: tokens of the context that it must leave.

        Raises:
            ApiError: 400; wrong form, empty, unknown ids, or too long for the context.
        """
        given = _separate(prompt)
        texts = [one for one in given if isinstance(one, str)]
        encoded = iter(await self.encode(texts, special, None if keep else room))
        found = []
        for one in given:
            text, ids = (one, next(encoded)) if isinstance(one, str) else (None, one)
            found.append(PromptText(self._checked(ids, keep, room), text))
        return found

    async def chat_prompt(self, request: ChatRequest, special: bool) -> tuple[str, list[int]]:
        """The prompt of a chat, from its messages and the template: as text, and its token ids.

        Raises:
            ApiError: 400; wrong messages, no template, the template's own objection, or too long for the context.
        """
        text = await self.render(request)
        keep = request.truncate_prompt_tokens
        (ids,) = await self.encode([text], special, None if keep else 1)
        return text, self._checked(ids, keep)

    async def render(self, request: ChatRequest | TokenizeRequest) -> str:
        """The text of a chat's prompt.

        Raises:
            ApiError: 400; wrong messages, no template, or the template's own objection.
        """
        return await self._off_loop(_characters(request.messages or []), self._render, request)

    def _render(self, request: ChatRequest | TokenizeRequest) -> str:
        count = len(request.messages or [])
        if not 0 < count <= MAX_MESSAGES:
            raise invalid(f"messages: {count} messages; 1 to {MAX_MESSAGES} are needed", "messages")
        if request.chat_template is not None:
            # A template is a program; one that comes with a request could keep the server busy for ever.
            raise invalid("chat_template: is not taken from requests; start the server with --chat-template",
                          "chat_template")  # fmt: skip
        continues = bool(request.continue_final_message)
        generation = request.add_generation_prompt
        return render(
            self.tokenizer,
            request.messages or [],
            self.templates,
            tools_of(request),
            add_generation_prompt=not continues if generation is None else generation,
            continue_final_message=continues,
            documents=getattr(request, "documents", None),
            variables=request.chat_template_kwargs,
        )

    async def encode(self, texts: list[str], special: bool, room: int | None = 1) -> list[list[int]]:
        """Token ids of each text.

        Raises:
            ApiError: 400; a text is so long that no tokenization of it can leave `room` in the context (None: as long
                as it likes).
        """
        if room is not None:
            for text in texts:
                check_prompt_length(len(text) // self._longest_token, self.limits, room, at_least=True)
        if len(texts) == 1 and len(texts[0]) <= INLINE_CHARACTERS:
            return [self.tokenizer.encode(texts[0], special)]
        return await self._off_loop(sum(map(len, texts)), self.tokenizer.encode_batch, texts, special)

    async def bad_word_ids(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """The token sequences of bad words."""
        return await self._off_loop(FORMS * sum(map(len, words)), self.tokenizer.bad_word_ids, words)

    async def _off_loop(self, characters: int, work: Callable[..., T], *arguments: Any) -> T:
        """`work`, which handles so many characters, in the thread where they are many.

        Of the tokenizer's calls, those for several texts let other threads run meanwhile.
        """
        if characters <= INLINE_CHARACTERS:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _checked(self, ids: list[int], keep: int | None, room: int = 1) -> list[int]:
        ids = ids if keep is None else ids[-keep:]
        if not ids:
            raise invalid("prompt: is empty; it needs at least one token", "prompt", "empty_prompt")
        check_prompt_length(len(ids), self.limits, room)
        check_token_ids("prompt", ids, self.limits)
        return ids


def tools_of(request: ChatRequest | TokenizeRequest) -> list[dict[str, Any]] | None:
    """The tools that the model may see."""
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
        raise wrong("prompt", prompt, problem)
    if len(prompt) > MAX_PROMPTS:
        raise invalid(f"prompt: {len(prompt)} prompts in one request; at most {MAX_PROMPTS}", "prompt")
    return list(prompt)


def _characters(messages: list[dict[str, Any]]) -> int:
    """About how much text a template has to handle."""
    return sum(_length(message.get("content")) for message in messages)


def _length(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    # A message without text may hold calls.
    return sum((len(text) for text in texts if isinstance(text, str)), start=1024)
