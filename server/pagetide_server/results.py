"""What `LLM.generate` returns, and how it grows out of the engine's outputs."""

from __future__ import annotations

import dataclasses
import time

from pagetide_spec.errors import PagetideError

from .engine.limits import answers
from .engine.messages import AddRequest, FinishReason, SamplingParams, SequenceOutput, TokenLogprobs
from .text.detokenizer import Detokenizer
from .text.tokenizer import Tokenizer


class GenerationError(PagetideError):
    """The engine could not finish a request; the text says why."""


@dataclasses.dataclass
class CompletionOutput:
    """One answer. `logprobs` has one entry a token if they were asked for."""

    index: int
    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    finish_reason: FinishReason | None = None
    logprobs: list[TokenLogprobs] | None = None

    @property
    def mean_logprob(self) -> float:
        """Mean log probability of the tokens; what `best_of` ranks by."""
        found = [entry.logprob for entry in self.logprobs or ()]
        return sum(found) / len(found) if found else 0.0


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
        wanted = range(answers(params))
        keeps_logprobs = add.params.logprobs is not None
        self._answers = [CompletionOutput(i, logprobs=[] if keeps_logprobs else None) for i in wanted]
        self._detokenizers = [Detokenizer(tokenizer, add.prompt_token_ids, params) for _ in wanted]

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
        if answer.finish_reason is not None:
            return False  # computed before the engine heard of the stop string
        self._note(output)
        text_ids = output.token_ids[:-1] if output.stop_token_id is not None else output.token_ids
        piece = self._detokenizers[output.index].push(text_ids, finished=output.finish_reason is not None)
        answer.text += piece.text
        used = len(output.token_ids) if piece.stopped is None else piece.tokens_used
        answer.token_ids += output.token_ids[:used]
        if answer.logprobs is not None:
            answer.logprobs += output.logprobs[:used]
        answer.finish_reason = "stop" if piece.stopped is not None else output.finish_reason
        return piece.stopped is not None and output.finish_reason is None

    def result(self) -> RequestOutput:
        """The request with its `n` answers, the best first if there was a choice."""
        answers = self._answers
        if self.params.best_of is not None:
            answers = sorted(answers, key=lambda a: -a.mean_logprob)[: self.params.n]
            for i, answer in enumerate(answers):
                answer.index = i
                answer.logprobs = answer.logprobs if self.params.logprobs is not None else None
        return RequestOutput(self.prompt, self.add.prompt_token_ids, answers, self.metrics, self.prompt_logprobs)

    def _note(self, output: SequenceOutput) -> None:
        now = time.monotonic()
        if output.scheduled:
            self.metrics.scheduled = self.metrics.scheduled or output.scheduled
            self.metrics.first_token = self.metrics.first_token or now
            self.metrics.cached_tokens = output.cached_tokens
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        self.metrics.finished = now
