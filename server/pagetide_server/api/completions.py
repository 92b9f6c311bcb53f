"""/v1/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.types import Send

from ..engine.client import Prompt
from .answer import Delta
from .context import Context, context_of, new_id
from .decoding import parse
from .errors import invalid
from .generation import Generation
from .logprobs import completion_logprobs, end_of_text, prompt_logprobs
from .openapi import body_of
from .prompts import PromptText
from .protocol import CompletionRequest
from .replies import Completion, TextChoice
from .streaming import WatchedResponse, event, send_events, send_json
from .usage import UsageWriter, best, note
from .validation import (
    DEFAULT_MAX_TOKENS,
    answer_length,
    check_answers,
    check_stream_options,
    sampling_params,
    with_length,
)

router = APIRouter()


@router.post("/v1/completions", **body_of(CompletionRequest, stream=True))
async def create_completion(request: Request) -> WatchedResponse:
    """Continue one or more prompts."""
    arrival = time.monotonic()
    context = context_of(request)
    context.serving()
    body = parse(await request.body(), CompletionRequest)
    context.check_model(body.model)
    job = await _prepare(context, body)
    return WatchedResponse(lambda send: _run(context, request, job, arrival, send))


class _Job:
    """A checked request: its prompts, and how its answers are written."""

    def __init__(self, context: Context, body: CompletionRequest, texts: list[PromptText], prompts: list[Prompt]):
        self.body, self.texts, self.prompts = body, texts, prompts
        self.tokenizer = context.serving().tokenizer
        self.id, self.created, self.model = new_id("cmpl"), int(time.time()), context.model_name
        self.scores_only = body.max_tokens == 0
        self.n = body.n or 1
        self._offsets: dict[int, int] = {}

    def per_prompt(self) -> int:
        """Answers that the engine makes for each prompt."""
        return max(self.n, self.body.best_of or 0)

    def chunk(self, choices: list[TextChoice]) -> Completion:
        """A response, or one event of a stream."""
        return Completion(id=self.id, created=self.created, model=self.model, choices=choices)

    def choice(self, delta: Delta, generation: Generation) -> TextChoice:
        """A delta in the form of this route. The first one of an answer carries the echo, if that was asked for."""
        body, is_first = self.body, delta.index not in self._offsets
        offset = self._offsets.get(delta.index, 0)
        number = delta.index // self.per_prompt()
        choice = TextChoice(
            index=delta.index, text=delta.text, finish_reason=delta.finish_reason, stop_reason=delta.stop_reason
        )
        ids, entries = delta.token_ids, list[Any](delta.logprobs)
        run = generation.runs[number]
        if is_first and body.echo:
            choice.text = self._prompt_text(number) + delta.text
            ids = [*self.prompts[number].token_ids, *ids]
            entries = [*(run.prompt_logprobs or []), *entries]
        if body.logprobs is not None:
            choice.logprobs = completion_logprobs(self.tokenizer, ids, entries, offset)
            offset = end_of_text(self.tokenizer, ids, offset)
        if body.return_token_ids:
            choice.token_ids = delta.token_ids
            choice.prompt_token_ids = self.prompts[number].token_ids if is_first else UNSET
        if body.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs(self.tokenizer, run.prompt_logprobs or [])
        self._offsets[delta.index] = offset
        return choice

    def _prompt_text(self, number: int) -> str:
        text = self.texts[number].text
        return text if text is not None else self.tokenizer.decode(self.prompts[number].token_ids)


async def _prepare(context: Context, body: CompletionRequest) -> _Job:
    """Check and tokenize; nothing has reached the engine yet."""
    if body.suffix:
        raise invalid("suffix: is not supported; models here only continue a text", "suffix")
    if body.max_tokens == 0 and not body.echo:
        raise invalid("max_tokens: 0: must be at least 1, but for echo", "max_tokens")
    check_stream_options(body)
    limits, prompter = context.limits, context.serving()
    params = sampling_params(body, limits)
    special = body.add_special_tokens is not False
    texts = await prompter.completion_prompts(body.prompt, special, body.truncate_prompt_tokens)
    check_answers(len(texts), params)
    bad_words = await prompter.bad_word_ids(params.bad_words)
    prompts = []
    for text in texts:
        wanted = max(body.max_tokens, 1) if body.max_tokens is not None else None
        length = answer_length(len(text.token_ids), wanted, DEFAULT_MAX_TOKENS, limits)
        completed = with_length(params, length, bad_words)
        prompts.append(Prompt(text.token_ids, completed, body.priority or 0, body.cache_salt or ""))
    return _Job(context, body, texts, prompts)


async def _run(context: Context, request: Request, job: _Job, arrival: float, send: Send) -> None:
    with Generation(
        context.engine, job.tokenizer, context.metrics, job.prompts, arrival, job.scores_only, request.state.request_id
    ) as generation:
        try:
            if job.body.stream:
                await send_events(send, _events(job, generation))
            else:
                await send_json(send, await _whole(job, generation))
        finally:
            note(request, generation, job.model, job.id)


async def _events(job: _Job, generation: Generation) -> AsyncIterator[bytes]:
    usage = UsageWriter(job.body.stream_options, generation)
    while deltas := await generation.next():
        parts = []
        for delta in deltas:
            chunk = job.chunk([job.choice(delta, generation)])
            chunk.usage = usage.running()
            parts.append(event(chunk))
        yield b"".join(parts)
    if usage.wanted:
        chunk = job.chunk([])
        chunk.usage = usage.final()
        yield event(chunk)


async def _whole(job: _Job, generation: Generation) -> Completion:
    deltas = best(await generation.finish(), job.n, job.body.best_of)
    choices = [job.choice(delta, generation) for delta in deltas]
    for index, choice in enumerate(choices):
        choice.index = index
    answer = job.chunk(choices)
    answer.usage = UsageWriter(None, generation).final()
    return answer
