"""What `LLM.generate` returns, and how it grows out of the engine's outputs."""

from __future__ import annotations

import dataclasses
import time

from pagetide_spec.errors import PagetideError

from .engine.limits import answers
from .text.answer import Answer, Delta, best, joined
from .text.tokenizer import Tokenizer
from .wire.messages import AddRequest, SamplingParams, SequenceOutput, TokenLogprobs


class GenerationError(PagetideError):
    """The engine could not finish a request; the text says why."""


@dataclasses.dataclass
class CompletionOutput:
    """One answer. `logprobs` has one entry a token if they were asked for."""

    index: int
    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    logprobs: list[TokenLogprobs] | None = None


@dataclasses.dataclass
class RequestMetrics:
    """Times in seconds of the monotonic clock, and how many prompt tokens came from the prefix cache."""

    arrival: float
    scheduled: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0
    cached_tokens: int = 0


@dataclasses.dataclass
class RequestOutput:
    """Everything about one prompt; `outputs` are its `n` answers."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics
    prompt_logprobs: list[TokenLogprobs | None] | None = None


class OpenPrompt:
    """A request on its way: its message to the engine, and the answers as they grow."""

    def __init__(self, add: AddRequest, params: SamplingParams, prompt: str | None, tokenizer: Tokenizer) -> None:
        self.add, self.params, self.prompt = add, params, prompt
        self.metrics = RequestMetrics(arrival=add.arrival)
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        count = range(answers(params))
        self._answers = [Answer(i, tokenizer, add.prompt_token_ids, params) for i in count]
        self._deltas: list[list[Delta]] = [[] for _ in count]

    @property
    def is_open(self) -> bool:
        """Whether an answer still grows."""
        return any(a.finish_reason is None for a in self._answers)

    def take(self, output: SequenceOutput) -> bool:
        """Add what one step brought; True if a stop string ended the answer before the engine did.

        Raises:
            GenerationError: the engine gave the request up.
        """
        if output.finish_reason == "error":
            raise GenerationError(f"{self.add.request_id}: {output.error}")
        answer = self._answers[output.index]
        was_open = answer.finish_reason is None
        if was_open:
            self._note(output)
        if (delta := answer.take(output)) is not None:
            self._deltas[output.index].append(delta)
        return was_open and answer.finish_reason is not None and output.finish_reason is None

    def result(self) -> RequestOutput:
        """The request with its `n` answers, the best first if there was a choice."""
        whole = [joined(i, deltas) for i, deltas in enumerate(self._deltas)]
        chosen = best(whole, self.params.n, self.params.best_of)
        outputs = [self._output(i, answer) for i, answer in enumerate(chosen)]
        return RequestOutput(self.prompt, self.add.prompt_token_ids, outputs, self.metrics, self.prompt_logprobs)

    def _output(self, index: int, answer: Delta) -> CompletionOutput:
        logprobs = None if self.params.logprobs is None else answer.logprobs
        return CompletionOutput(index, answer.text, answer.token_ids, answer.finish_reason, logprobs)

    def _note(self, output: SequenceOutput) -> None:
        now = time.monotonic()
        if output.scheduled:
            self.metrics.scheduled = self.metrics.scheduled or output.scheduled
            self.metrics.first_token = self.metrics.first_token or now
            self.metrics.cached_tokens = output.cached_tokens
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        self.metrics.finished = now
