"""The library: `LLM(model=...).generate(prompts, params)`, with the engine in the caller's own process."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import PagetideError, SettingError

from .engine.messages import (
    AbortRequest,
    AddRequest,
    EngineStats,
    FinishReason,
    SamplingParams,
    SequenceOutput,
    TokenLogprobs,
)
from .engine.params import check_params, check_prompt
from .engine.threads import wait_passively
from .text.detokenizer import Detokenizer
from .text.tokenizer import Tokenizer

Prompt = str | Sequence[int]


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


class LLM:
    """A model for offline use.

    `LLM(model="path or hub id", max_num_seqs=8, ...)` takes every EngineConfig field. Not thread-safe. Use it as a
    context manager, or `close()` it, to free the model's memory.

    Raises:
        SettingError: an engine setting that does not exist or has a wrong value.
        PagetideError: the model cannot be loaded.
    """

    def __init__(self, model: str, **engine_config: Any) -> None:
        self.config = EngineConfig.from_mapping({"model": model, **engine_config})
        wait_passively()
        from .engine.factory import create_core  # imports torch

        # The bound of the queue protects a server from its clients; here all prompts are in memory anyhow.
        unbounded = dataclasses.replace(self.config, max_queue_len=sys.maxsize)
        self._tokenizer = Tokenizer.load(self.config)
        self._core: Any = create_core(unbounded, lambda stage, fraction: None)
        self._ids = itertools.count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer all prompts, batched; the results in the order of the prompts.

        Args:
            prompts: text or token ids, or a list of either.
            params: one for all, or one a prompt; the defaults of SamplingParams if left out.
            progress: show a progress bar; None shows one on a terminal for more than one prompt.

        Raises:
            SettingError: a prompt or a parameter that the model cannot fulfil.
            GenerationError: the engine refused or failed a request; the others of the call are aborted.
        """
        if self._core is None:
            raise PagetideError("this LLM is closed")
        requests = self._requests(_as_list(prompts), params)
        try:
            with _progress_bar(len(requests), progress) as advance:
                self._run({r.add.request_id: r for r in requests}, advance)
        finally:
            for request in requests:
                self._core.abort(AbortRequest(request.add.request_id))
        return [r.result() for r in requests]

    @property
    def vocab_size(self) -> int:
        """Token ids go from 0 to this number less one."""
        return int(self._core.ready.vocab_size)

    @property
    def stats(self) -> EngineStats:
        """State and totals of the engine as of now."""
        return self._core.stats()

    def close(self) -> None:
        """Free the model and its KV cache; closing twice is no error."""
        if self._core is not None:
            self._core.close()
        self._core = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _requests(
        self, prompts: list[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[_Request]:
        if isinstance(params, Sequence):
            if len(params) != len(prompts):
                raise SettingError("params", f"{len(params)} entries", f"must be one, or {len(prompts)}: one a prompt")
            each = list(params)
        else:
            each = [params or SamplingParams()] * len(prompts)
        return [self._request(prompt, one) for prompt, one in zip(prompts, each, strict=True)]

    def _request(self, prompt: Prompt, params: SamplingParams) -> _Request:
        token_ids = self._tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        check_prompt(token_ids, self._core.ready)
        check_params(params, self._core.ready)
        # The best answers are told by their log probabilities, asked for or not.
        ranked = params.best_of is not None and params.logprobs is None
        add = AddRequest(
            request_id=f"llm-{next(self._ids)}",
            prompt_token_ids=token_ids,
            params=msgspec.structs.replace(params, logprobs=0) if ranked else params,
            arrival=time.monotonic(),
        )
        return _Request(add, params, prompt if isinstance(prompt, str) else None, self._tokenizer)

    def _run(self, requests: dict[str, _Request], advance: Callable[[], object]) -> None:
        outputs = [output for r in requests.values() for output in self._core.add(r.add)]
        left = len(requests)
        while True:
            for output in outputs:
                request = requests[output.request_id]
                was_open = request.is_open
                if request.take(output):
                    self._core.abort(AbortRequest(output.request_id, output.index, "stop"))
                if was_open and not request.is_open:
                    left -= 1
                    advance()
            if not left:
                return
            outputs = self._core.step().outputs


class _Request:
    """A request on its way: its message to the engine, and the answers as they grow."""

    def __init__(self, add: AddRequest, params: SamplingParams, prompt: str | None, tokenizer: Tokenizer) -> None:
        self.add, self.params, self.prompt = add, params, prompt
        self.metrics = RequestMetrics(arrival=add.arrival)
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        wanted = range(params.best_of or params.n)
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


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and all(isinstance(p, int) for p in prompts)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


@contextmanager
def _progress_bar(total: int, wanted: bool | None) -> Iterator[Callable[[], object]]:
    console = Console(stderr=True)
    shown = (console.is_terminal and total > 1) if wanted is None else wanted
    columns = (TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not shown) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
