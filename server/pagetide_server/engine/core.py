"""The engine's loop body: schedule -> forward -> sample -> settle, and what comes of it for each request."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any, Protocol

from pagetide_spec.errors import PagetideError, SettingError

from .limits import answers
from .messages import (
    AbortRequest,
    AddRequest,
    EngineStats,
    ErrorKind,
    Ready,
    SequenceOutput,
    StepOutput,
    Structure,
    TokenLogprobs,
)
from .params import check_token_ids
from .scheduler import RequestRefused, Scheduler, Settled
from .sequence import Sequence, Step

log = logging.getLogger(__name__)


class Runner(Protocol):
    """What the loop needs of a model (model/runner.py)."""

    def execute(self, step: Step) -> Any:
        """Logits of the step: `sampling` [sequences, vocabulary], `prompt` {row: [tokens, vocabulary]}."""


class Sampler(Protocol):
    """What the loop needs of a sampler (sampler.py)."""

    def sample(self, logits: Any, sequences: list[Sequence]) -> Any:
        """One token for each sequence; may change `logits`."""

    def prompt_logprobs(self, logits: Any, next_token_ids: list[int], top: int) -> list[TokenLogprobs]:
        """The log probability of each next token."""


class Grammar(Protocol):
    """A compiled structure (structure.py)."""

    def matcher(self) -> Any:
        """State of one answer, at its beginning."""


class Compilation(Protocol):
    """A structure on its way to a grammar (structure.py)."""

    def done(self) -> bool:
        """Whether `result` comes at once."""

    def result(self) -> Grammar:
        """The grammar; raises a PagetideError that is the client's fault."""


class Compiler(Protocol):
    """Compiles structures beside the loop (structure.py)."""

    def compile(self, structure: Structure) -> Compilation:
        """Start to compile; never raises."""

    def close(self) -> None:
        """Drop what waits to be compiled."""


@dataclasses.dataclass(slots=True)
class _Open:
    """A request between its arrival and its last token."""

    request: AddRequest
    sequences_left: int
    scheduled: float = 0.0
    grammar: Grammar | None = None
    # Of the prompt's tokens so far; None when they were not asked for, or have been delivered.
    prompt_logprobs: list[TokenLogprobs | None] | None = None


class EngineCore:
    """One model, its KV cache and the requests in it. Not thread-safe: one thread calls everything.

    Attributes:
        ready: what callers must know of the engine to check requests.
    """

    def __init__(
        self, scheduler: Scheduler, runner: Runner, sampler: Sampler, compiler: Compiler, ready: Ready
    ) -> None:
        self._scheduler, self._runner, self._sampler, self._compiler = scheduler, runner, sampler, compiler
        self.ready = ready
        self._open: dict[str, _Open] = {}
        self._compiling: dict[str, Compilation] = {}

    # ---- requests in

    def add(self, request: AddRequest) -> list[SequenceOutput]:
        """Take a request in; the refusal as an error output, or nothing."""
        if request.request_id in self._open:
            return [_error(request.request_id, 0, f"request id {request.request_id!r} is in use", "invalid")]
        entry = _Open(request, sequences_left=answers(request.params))
        if request.params.prompt_logprobs is not None:
            entry.prompt_logprobs = [None]
        try:
            check_token_ids(request.prompt_token_ids, self.ready.vocab_size, "prompt")
            if request.params.structure is None:
                self._scheduler.add(request)
            else:
                self._compiling[request.request_id] = self._compiler.compile(request.params.structure)
        except SettingError as error:
            return [_error(request.request_id, 0, str(error), "invalid")]
        except RequestRefused as error:
            return [_error(request.request_id, 0, str(error), error.kind)]
        self._open[request.request_id] = entry
        return []

    def abort(self, message: AbortRequest) -> list[SequenceOutput]:
        """End a request or one of its sequences now; the last output of each sequence that ended by it."""
        if message.request_id in self._compiling:
            return self._abort_compiling(message)
        ended = self._scheduler.abort(message.request_id, message.index)
        for sequence in ended:
            self._close(sequence)
        return [_ended(message, s.index) for s in ended]

    def _abort_compiling(self, message: AbortRequest) -> list[SequenceOutput]:
        # One answer of several cannot leave before the scheduler knows of them: it is computed, and then ignored.
        if message.index is not None and self._open[message.request_id].sequences_left > 1:
            return []
        del self._compiling[message.request_id]
        entry = self._open.pop(message.request_id)
        return [_ended(message, i) for i in range(entry.sequences_left)]

    def has_work(self) -> bool:
        """Whether a step would do something now."""
        return self._scheduler.has_work() or any(c.done() for c in self._compiling.values())

    def is_waiting(self) -> bool:
        """Whether a request waits for its grammar to be compiled."""
        return bool(self._compiling)

    # ---- one step

    def step(self) -> StepOutput:
        """Advance every scheduled sequence; what came of it."""
        started = time.monotonic()
        outputs = self._admit_compiled()
        step = self._scheduler.schedule()
        if step:
            self._note_start(step, started)
            outputs += self._compute(step)
        now = time.monotonic()
        return StepOutput(
            outputs=outputs,
            stats=self.stats(),
            time=now,
            seconds=now - started,
            tokens=step.num_tokens,
            sequences=len(step.rows),
        )

    def close(self) -> None:
        """End the threads that compile grammars."""
        self._compiler.close()

    def stats(self) -> EngineStats:
        """State and totals as of now."""
        stats = self._scheduler.stats()
        stats.waiting += len(self._compiling)
        return stats

    def _admit_compiled(self) -> list[SequenceOutput]:
        """Hand the requests whose grammar is ready to the scheduler."""
        outputs = []
        for request_id, compilation in list(self._compiling.items()):
            if not compilation.done():
                continue
            entry = self._open[request_id]
            del self._compiling[request_id]
            try:
                entry.grammar = compilation.result()
                self._scheduler.add(entry.request)
            except (RequestRefused, PagetideError) as error:
                del self._open[request_id]
                kind = error.kind if isinstance(error, RequestRefused) else "invalid"
                outputs.append(_error(request_id, 0, str(error), kind))
        return outputs

    def _note_start(self, step: Step, now: float) -> None:
        for leader in step.started:
            self._open[leader.request_id].scheduled = now

    def _compute(self, step: Step) -> list[SequenceOutput]:
        """Forward, sample and settle. A failure ends the requests it concerns, never the loop."""
        sequences = step.sampling()
        self._give_matchers(sequences)
        try:
            logits = self._runner.execute(step)
            self._score_prompts(step, logits.prompt)
            sampled = self._sampler.sample(logits.sampling, sequences)
        except Exception as error:  # whatever a model raises must not take the other requests along
            log.exception("a step failed; its %d sequences end with an error", len(step.rows))
            touched = [s for row in step.rows for s in (row.sequence, *row.siblings)] + step.preempted
            return [output for s in touched for output in self._fail(s, error)]
        outputs = [out for i, error in sampled.errors.items() for out in self._fail(sequences[i], error)]
        logprobs = {id(s): found for s, found in zip(sequences, sampled.logprobs, strict=True) if found is not None}
        for settled in self._scheduler.settle(step, sampled.token_ids):
            outputs.append(self._output(settled, logprobs.get(id(settled.sequence))))
        return outputs

    def _give_matchers(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            if sequence.matcher is None and sequence.params.structure is not None:
                grammar = self._open[sequence.request_id].grammar
                sequence.matcher = grammar.matcher() if grammar is not None else None

    def _score_prompts(self, step: Step, prompt_logits: dict[int, Any]) -> None:
        for index, logits in prompt_logits.items():
            row = step.rows[index]
            sequence = row.sequence
            scored = self._open[sequence.request_id].prompt_logprobs
            if scored is None or len(scored) > row.start + 1:
                continue  # computed once more after a preemption
            targets = sequence.tokens[row.start + 1 : min(row.start + row.count + 1, sequence.prompt_len)]
            top = sequence.params.prompt_logprobs or 0
            scored += self._sampler.prompt_logprobs(logits[: len(targets)], targets, top)

    def _output(self, settled: Settled, logprobs: TokenLogprobs | None) -> SequenceOutput:
        sequence = settled.sequence
        output = SequenceOutput(
            request_id=sequence.request_id,
            index=sequence.index,
            token_ids=[] if settled.token_id is None else [settled.token_id],
            logprobs=[] if logprobs is None else [logprobs],
            finish_reason=settled.finish_reason,
            stop_token_id=settled.stop_token_id,
        )
        if sequence.generated <= 1:
            entry = self._open[sequence.request_id]
            output.scheduled = entry.scheduled
            output.cached_tokens = sequence.cached_tokens
            output.prompt_logprobs, entry.prompt_logprobs = entry.prompt_logprobs, None
        if settled.finish_reason is not None:
            self._close(sequence)
        elif sequence.matcher is not None and not sequence.matcher.accept(settled.token_id):
            (output,) = self._fail(sequence, sequence.matcher.error)
        return output

    def _fail(self, sequence: Sequence, error: object) -> list[SequenceOutput]:
        """End a sequence, and those that wait for its prompt, with an error."""
        ended = self._scheduler.fail(sequence)
        for each in ended:
            self._close(each)
        text = str(error) or type(error).__name__
        return [_error(each.request_id, each.index, text, "engine") for each in ended]

    def _close(self, sequence: Sequence) -> None:
        entry = self._open.get(sequence.request_id)
        if entry is None:
            return
        entry.sequences_left -= 1
        if entry.sequences_left <= 0:
            del self._open[sequence.request_id]


def _error(request_id: str, index: int, text: str, kind: ErrorKind) -> SequenceOutput:
    return SequenceOutput(request_id=request_id, index=index, finish_reason="error", error=text, error_kind=kind)


def _ended(message: AbortRequest, index: int) -> SequenceOutput:
    return SequenceOutput(request_id=message.request_id, index=index, finish_reason=message.reason)
