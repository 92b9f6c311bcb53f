"""/v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.types import Send

from ..engine.client import Prompt
from .answer import Delta
from .context import Context, context_of, new_id
from .decoding import parse
from .generation import Generation
from .logprobs import chat_logprobs, prompt_logprobs
from .openapi import body_of
from .parts import Parts, Splitter
from .prompts import PromptText
from .protocol import ChatRequest
from .replies import ChatChoice, ChatChunk, ChatCompletion, ChatDelta, ChunkChoice, Message
from .splitting import splitter_factory, tool_params
from .streaming import WatchedResponse, event, send_events, send_json
from .usage import UsageWriter, best, note
from .validation import answer_length, check_stream_options, sampling_params, with_length

router = APIRouter()


@router.post("/v1/chat/completions", **body_of(ChatRequest, stream=True))
async def create_chat_completion(request: Request) -> WatchedResponse:
    """Answer a chat."""
    arrival = time.monotonic()
    context = context_of(request)
    context.serving()
    body = parse(await request.body(), ChatRequest)
    context.check_model(body.model)
    job = await _prepare(context, body)
    return WatchedResponse(lambda send: _run(context, request, job, arrival, send))


class _Job:
    """A checked request, and how its answers are written."""

    def __init__(self, context: Context, body: ChatRequest, prompt: Prompt) -> None:
        self.body, self.prompt = body, prompt
        self.tokenizer = context.serving().tokenizer
        self.id, self.created, self.model = new_id("chatcmpl"), int(time.time()), context.model_name
        self.role = _role(body)
        self._new_splitter = splitter_factory(context.config, context.serving(), body)
        self._splitters: dict[int, Splitter] = {}

    def splitter(self, index: int) -> Splitter:
        """What divides the text of an answer into content, reasoning and tool calls."""
        return self._splitters.setdefault(index, self._new_splitter())

    def chunk(self, choices: list[ChunkChoice]) -> ChatChunk:
        """One event of the stream."""
        return ChatChunk(id=self.id, created=self.created, model=self.model, choices=choices)

    def chunk_choice(self, delta: Delta) -> ChunkChoice | None:
        """A delta in the form of the stream; None while its text is held back."""
        is_first = delta.index not in self._splitters
        splitter = self.splitter(delta.index)
        parts = splitter.push(delta.text, delta.finish_reason is not None)
        splitter.hold(delta)
        if not parts and delta.finish_reason is None:
            if is_first:
                splitter.role_due = True
            return None
        content = ChatDelta(
            content=parts.content or UNSET,
            reasoning_content=parts.reasoning or UNSET,
            tool_calls=parts.tool_calls or UNSET,
        )
        if is_first or splitter.role_due:
            content.role, splitter.role_due = self.role, False
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


async def _prepare(context: Context, body: ChatRequest) -> _Job:
    """Check, render and tokenize; nothing has reached the engine yet."""
    check_stream_options(body)
    limits, prompter = context.limits, context.serving()
    params = tool_params(body, sampling_params(body, limits))
    text: PromptText = await prompter.chat_prompt(body, bool(body.add_special_tokens))
    wanted = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    length = answer_length(len(text.token_ids), wanted, None, limits)
    completed = with_length(params, length, await prompter.bad_word_ids(params.bad_words))
    return _Job(context, body, Prompt(text.token_ids, completed, body.priority or 0, body.cache_salt or ""))


async def _run(context: Context, request: Request, job: _Job, arrival: float, send: Send) -> None:
    name = request.state.request_id
    with Generation(context.engine, job.tokenizer, context.metrics, [job.prompt], arrival, name=name) as generation:
        try:
            if job.body.stream:
                await send_events(send, _events(job, generation))
            else:
                await send_json(send, await _whole(job, generation))
        finally:
            note(request, generation, job.model, job.id)


async def _events(job: _Job, generation: Generation) -> AsyncIterator[bytes]:
    usage = UsageWriter(job.body.stream_options, generation)
    is_first = True
    while deltas := await generation.next():
        parts = []
        for delta in deltas:
            choice = job.chunk_choice(delta)
            if choice is None:
                continue
            chunk = job.chunk([choice])
            chunk.usage = usage.running()
            if is_first and job.body.return_token_ids:
                chunk.prompt_token_ids = job.prompt.token_ids
            is_first = False
            parts.append(event(chunk))
        if parts:
            yield b"".join(parts)
    if usage.wanted:
        chunk = job.chunk([])
        chunk.usage = usage.final()
        yield event(chunk)


async def _whole(job: _Job, generation: Generation) -> ChatCompletion:
    deltas = best(await generation.finish(), job.body.n or 1, job.body.best_of)
    answer = ChatCompletion(
        id=job.id,
        created=job.created,
        model=job.model,
        choices=[job.choice(delta, index) for index, delta in enumerate(deltas)],
        usage=UsageWriter(None, generation).final(),
    )
    if job.body.prompt_logprobs is not None:
        answer.prompt_logprobs = prompt_logprobs(job.tokenizer, generation.runs[0].prompt_logprobs or [])
    if job.body.return_token_ids:
        answer.prompt_token_ids = job.prompt.token_ids
    return answer
