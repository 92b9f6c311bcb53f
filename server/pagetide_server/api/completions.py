"""/v1/completions."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from msgspec import UNSET

from ..process.client import Prompt
from ..text.answer import Delta, best
from .answering import answer
from .context import Context, new_id
from .errors import invalid, wrong
from .generation import Generation
from .logprobs import completion_logprobs, end_of_text, prompt_logprobs
from .openapi import body_of
from .prompts import Prompter, PromptText
from .protocol import CompletionRequest
from .responses import Completion, TextChoice
from .streaming import WatchedResponse
from .structures import asked_structure
from .validation import DEFAULT_MAX_TOKENS, answer_length, check_answers, least_room, sampling_params, with_length

router = APIRouter()


@router.post("/v1/completions", **body_of(CompletionRequest, stream=True))
async def create_completion(request: Request) -> WatchedResponse:
    """Continue one or more prompts."""
    return await answer(request, CompletionRequest, _prepare)


class _Job:
    """A checked request: its prompts, and how its answers are written."""

    def __init__(
        self, context: Context, prompter: Prompter, body: CompletionRequest, texts: list[PromptText],
        prompts: list[Prompt], structure_field: str,
    ) -> None:  # fmt: skip
        self.body, self.prompts, self.tokenizer = body, prompts, prompter.tokenizer
        self.id, self.created, self.model = new_id("cmpl", body.request_id), int(time.time()), context.model_name
        self.structure_field, self._texts = structure_field, texts
        # Answers that the engine makes for each prompt.
        self._per_prompt = max(body.n or 1, body.best_of or 0)
        self._offsets: dict[int, int] = {}

    def chunk(self, choices: list[TextChoice]) -> Completion:
        """A response, or one event of a stream."""
        return Completion(id=self.id, created=self.created, model=self.model, choices=choices)

    def chunks(self, deltas: list[Delta], generation: Generation) -> list[Completion]:
        """The events for new deltas."""
        return [self.chunk([self.choice(delta, generation)]) for delta in deltas]

    def differs_by_text(self) -> bool:
        """Whether events of one answer's plain tokens, but the first, are equal but for their text."""
        body = self.body
        return body.logprobs is None and body.prompt_logprobs is None and not body.return_token_ids

    def whole(self, answers: list[Delta], generation: Generation) -> Completion:
        """The response to a request that is not streamed."""
        choices = [self.choice(delta, generation) for delta in best(answers, self.body.n or 1, self.body.best_of)]
        for index, choice in enumerate(choices):
            choice.index = index
        return self.chunk(choices)

    def choice(self, delta: Delta, generation: Generation) -> TextChoice:
        """A delta in the form of this route. The first one of an answer carries the echo, if that was asked for."""
        body, is_first = self.body, delta.index not in self._offsets
        offset = self._offsets.get(delta.index, 0)
        number = delta.index // self._per_prompt
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
        text = self._texts[number].text
        return text if text is not None else self.tokenizer.decode(self.prompts[number].token_ids)


async def _prepare(context: Context, prompter: Prompter, body: CompletionRequest) -> _Job:
    """Check and tokenize."""
    if body.suffix:
        raise invalid("suffix: is not supported; models here only continue a text", "suffix")
    if body.max_tokens == 0 and not body.echo:
        raise wrong("max_tokens", 0, "must be at least 1; 0, for the prompt alone, needs echo to be true")
    asked = asked_structure(body)
    params = sampling_params(body, context.limits, asked.structure)
    special = body.add_special_tokens is not False
    room = least_room(body.max_tokens)
    texts = await prompter.completion_prompts(body.prompt, special, body.truncate_prompt_tokens, room)
    check_answers(len(texts), params)
    bad_words = await prompter.bad_word_ids(params.bad_words)
    prompts = []
    for text in texts:
        length = answer_length(len(text.token_ids), body.max_tokens, DEFAULT_MAX_TOKENS, context.limits)
        completed = with_length(params, length, bad_words)
        prompts.append(Prompt(text.token_ids, completed, body.priority or 0, body.cache_salt or ""))
    return _Job(context, prompter, body, texts, prompts, asked.field)
