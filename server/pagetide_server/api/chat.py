"""/v1/chat/completions."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from msgspec import UNSET

from ..process.client import Prompt
from ..text.answer import Delta, best
from .answering import answer
from .context import Context, new_id
from .generation import Generation
from .logprobs import chat_logprobs, prompt_logprobs
from .openapi import body_of
from .parts import Parts
from .prompts import Prompter
from .protocol import ChatRequest
from .responses import ChatChoice, ChatChunk, ChatCompletion, ChatDelta, ChunkChoice, Message
from .splitting import Splitter, showing_calls, splitter_factory, with_forced_call
from .streaming import WatchedResponse
from .structures import asked_structure
from .validation import answer_length, sampling_params, with_length

router = APIRouter()


@router.post("/v1/chat/completions", **body_of(ChatRequest, stream=True))
async def create_chat_completion(request: Request) -> WatchedResponse:
    """Answer a chat."""
    return await answer(request, ChatRequest, _prepare)


class _Job:
    """A checked request, and how its answers are written."""

    def __init__(
        self, context: Context, prompter: Prompter, body: ChatRequest, text: str, prompt: Prompt, structure_field: str
    ) -> None:
        self.body, self.prompts, self.tokenizer = body, [prompt], prompter.tokenizer
        self.structure_field = structure_field
        self.id, self.created, self.model = new_id("chatcmpl", body.request_id), int(time.time()), context.model_name
        self.role = _role(body)
        self._new_splitter = splitter_factory(context.config, prompter, body, prompt.params, text)
        self._splitters: dict[int, Splitter] = {}
        # Answers of which the stream has told something: the first chunk of each carries the role.
        self._told: set[int] = set()

    def splitter(self, index: int) -> Splitter:
        """What divides the text of an answer into content, reasoning and tool calls."""
        return self._splitters.setdefault(index, self._new_splitter())

    def chunk(self, choices: list[ChunkChoice]) -> ChatChunk:
        """One event of the stream."""
        return ChatChunk(id=self.id, created=self.created, model=self.model, choices=choices)

    def chunks(self, deltas: list[Delta], generation: Generation) -> list[ChatChunk]:
        """The events for new deltas."""
        is_first = not self._told
        chunks = [self.chunk([choice]) for delta in deltas if (choice := self._chunk_choice(delta)) is not None]
        if chunks and is_first and self.body.return_token_ids:
            chunks[0].prompt_token_ids = self.prompts[0].token_ids
        return chunks

    def differs_by_text(self) -> bool:
        """Whether events of one answer's plain tokens, but the first, are equal but for their text."""
        return self.splitter(0).is_idle and not (self.body.logprobs or self.body.return_token_ids)

    def _chunk_choice(self, delta: Delta) -> ChunkChoice | None:
        """A delta in the form of the stream; None while its text is held back."""
        splitter = self.splitter(delta.index)
        parts = splitter.push(delta.text, delta.finish_reason is not None)
        splitter.hold(delta)
        if not parts and delta.finish_reason is None:
            return None
        content = ChatDelta(
            content=parts.content or UNSET,
            reasoning_content=parts.reasoning or UNSET,
            tool_calls=parts.tool_calls or UNSET,
        )
        if delta.index not in self._told:
            self._told.add(delta.index)
            content.role = self.role
        return self._finished_choice(delta, content, splitter)

    def _finished_choice(self, delta: Delta, content: ChatDelta, splitter: Splitter) -> ChunkChoice:
        token_ids, entries = splitter.release()
        choice = ChunkChoice(index=delta.index, delta=content, finish_reason=splitter.reason(delta.finish_reason))
        if self.body.logprobs and entries:
            choice.logprobs = chat_logprobs(self.tokenizer, entries)
        if self.body.return_token_ids:
            choice.token_ids = token_ids
        if delta.stop_reason is not None:
            choice.stop_reason = delta.stop_reason
        return choice

    def choice(self, delta: Delta, index: int) -> ChatChoice:
        """A whole answer."""
        splitter = self.splitter(delta.index)
        parts = splitter.push(delta.text, True)
        choice = ChatChoice(
            index=index,
            message=self._message(parts),
            finish_reason=splitter.reason(delta.finish_reason),
            stop_reason=delta.stop_reason,
        )
        if self.body.logprobs:
            choice.logprobs = chat_logprobs(self.tokenizer, delta.logprobs)
        if self.body.return_token_ids:
            choice.token_ids = delta.token_ids
        return choice

    def whole(self, answers: list[Delta], generation: Generation) -> ChatCompletion:
        """The response to a request that is not streamed."""
        chosen = best(answers, self.body.n or 1, self.body.best_of)
        choices = [self.choice(delta, index) for index, delta in enumerate(chosen)]
        found = ChatCompletion(id=self.id, created=self.created, model=self.model, choices=choices)
        if self.body.prompt_logprobs is not None:
            found.prompt_logprobs = prompt_logprobs(self.tokenizer, generation.runs[0].prompt_logprobs or [])
        if self.body.return_token_ids:
            found.prompt_token_ids = self.prompts[0].token_ids
        return found

    def _message(self, parts: Parts) -> Message:
        calls = parts.whole_calls()
        # OpenAI's clients expect null content beside tool calls, and text in every other case.
        message = Message(role=self.role, content=parts.content or (None if calls else ""))
        if parts.reasoning:
            message.reasoning_content = parts.reasoning
        if calls:
            message.tool_calls = calls
        return message


def _role(body: ChatRequest) -> str:
    if body.continue_final_message and body.messages:
        return str(body.messages[-1]["role"])
    return "assistant"


async def _prepare(context: Context, prompter: Prompter, body: ChatRequest) -> _Job:
    """Check, render and tokenize."""
    asked = with_forced_call(body, asked_structure(body))
    params = showing_calls(body, sampling_params(body, context.limits, asked.structure))
    text, token_ids = await prompter.chat_prompt(body, bool(body.add_special_tokens))
    wanted = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    length = answer_length(len(token_ids), wanted, None, context.limits)
    completed = with_length(params, length, await prompter.bad_word_ids(params.bad_words))
    prompt = Prompt(token_ids, completed, body.priority or 0, body.cache_salt or "")
    return _Job(context, prompter, body, text, prompt, asked.field)
