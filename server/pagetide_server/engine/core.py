"""The engine's loop body: schedule -> forward -> sample -> settle, and what comes of it for each request."""

from __future__ import annotations

import logging
import time
from typing import Any

from pagetide_spec.errors import PagetideError

from ..wire.messages import (
    AbortRequest,
    AddRequest,
    EngineStats,
    ErrorKind,
    Ready,
    SequenceOutput,
    StepOutput,
    TokenLogprobs,
)
from . import isolation
from .faults import Busy, DeviceLost, RequestFault
from .grammar_queue import GrammarQueue
from .open_request import OpenRequest
from .roles import Compiler, Runner, Sampler
from .scheduler import RequestRefused, Scheduler, Settled
from .sequence import Sequence, Status, Step

log = logging.getLogger(__name__)

# A sequence, and what went wrong with it.
Problem = tuple[Sequence, object]


class EngineCore:
    """One model, its KV cache and the requests in it. Not thread-safe: one thread calls everything.

    A failure ends the requests that it concerns with an error, never the loop: that of a matcher or a sampler one
    answer, that of a forward the answers of its step. Only a lost device ends all.

    Attributes:
        ready: what callers must know of the engine to check requests.
    """

    def __init__(
        self, scheduler: Scheduler, runner: Runner, sampler: Sampler, compiler: Compiler, ready: Ready
    ) -> None:
        self._scheduler, self._runner, self._sampler = scheduler, runner, sampler
        self.ready = ready
        self._open: dict[str, OpenRequest] = {}
        # Some of `_open`.
        self._compiling = GrammarQueue(compiler)

    # ---- requests in

    def add(self, request: AddRequest) -> list[SequenceOutput]:
        """Take a request in; the refusal as an error output, or nothing."""
        if request.request_id in self._open:
            return [_error(request.request_id, 0, f"request id {request.request_id!r} is in use", "invalid")]
        try:
            self._scheduler.check(request, waiting_elsewhere=len(self._compiling))
        except RequestRefused as error:
            return [_error(request.request_id, 0, str(error), error.kind)]
        entry = self._open[request.request_id] = OpenRequest(request, self._scheduler.reserve())
        if request.params.structure is None:
            self._scheduler.admit(request, entry.place)
        else:
            self._compiling.put(entry)
        return []

    def abort(self, message: AbortRequest) -> list[SequenceOutput]:
        """End a request or one of its sequences now; the last output of each sequence that ended by it."""
        indices = self._compiling.withdraw(message.request_id, message.index)
        if indices is None:
            ended = self._scheduler.abort(message.request_id, message.index)
            for sequence in ended:
                self._close(sequence)
            indices = [s.index for s in ended]
        elif not self._open[message.request_id].left:
            del self._open[message.request_id]
        return [SequenceOutput(request_id=message.request_id, index=i, finish_reason=message.reason) for i in indices]

    def has_work(self) -> bool:
        """Whether a step would do something now."""
        return self._scheduler.has_work() or self._compiling.has_compiled()

    def is_waiting(self) -> bool:
        """Whether a request waits for its grammar to be compiled."""
        return len(self._compiling) > 0

    # ---- one step

    def step(self) -> StepOutput:
        """Advance every scheduled sequence; what came of it.

        Raises:
            DeviceLost: the device computes nothing any more.
        """
        started = time.monotonic()
        outputs = self._admit_compiled()
        step = self._scheduler.schedule()
        for leader in step.started:
            self._open[leader.request_id].scheduled = started
        if step.rows:
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
        """End the threads that compile grammars, and log what the prompts had in common."""
        self._compiling.close()
        if self._scheduler.prefix_lengths.prompts:
            log.info("block_size: %s", self._scheduler.prefix_lengths.summary())

    def stats(self) -> EngineStats:
        """State and totals as of now."""
        stats = self._scheduler.stats()
        stats.waiting += len(self._compiling)
        arrivals = [a for a in (stats.oldest_arrival, self._compiling.oldest_arrival) if a is not None]
        stats.oldest_arrival = min(arrivals, default=None)
        return stats

    def _admit_compiled(self) -> list[SequenceOutput]:
        """Hand the requests whose grammar is ready to the scheduler."""
        outputs = []
        for entry in self._compiling.take_compiled():
            request_id = entry.request.request_id
            assert entry.compilation is not None
            try:
                entry.grammar = entry.compilation.result()
            except Exception as error:
                del self._open[request_id]
                if isinstance(error, PagetideError):
                    kind: ErrorKind = "queue_full" if isinstance(error, Busy) else "invalid"
                    outputs.append(_error(request_id, 0, _text(error), kind))
                else:
                    log.exception("the structure of request %s could not be compiled", request_id)
                    outputs += [_error(request_id, i, _text(error), "engine") for i in entry.withdraw(None)]
                continue
            self._scheduler.admit(entry.request, entry.place)
            for index in entry.withdrawn:
                self._scheduler.abort(request_id, index)
        return outputs

    def _compute(self, step: Step) -> list[SequenceOutput]:
        """Forward, sample and settle."""
        sequences = step.sampling()
        try:
            logits = self._runner.execute(step)
            problems = self._begin_structures(sequences) + self._score_prompts(step, logits.prompt)
            chosen = isolation.sample(self._runner, self._sampler, step, logits.sampling)
        except DeviceLost:
            raise
        except Exception as error:  # whatever a model raises must not take the other requests along
            log.exception("a step failed; its %d sequences end with an error", len(step.rows))
            return self._fail_all([(s, error) for s in step.touched()])
        outputs = self._fail_all(problems + [(sequences[row], error) for row, error in chosen.errors.items()])
        logprobs = {id(s): found for s, found in zip(sequences, chosen.logprobs, strict=True) if found is not None}
        for settled in self._scheduler.settle(step, chosen.token_ids):
            # Another answer of its request may have shown that the request is at fault, and ended both.
            if settled.finish_reason is not None or settled.sequence.status is Status.RUNNING:
                outputs += self._output(settled, logprobs.get(id(settled.sequence)))
        return outputs

    def _begin_structures(self, sequences: list[Sequence]) -> list[Problem]:
        """Give matchers to the sequences whose answer begins."""
        begun = ((s, isolation.begin(s, self._open[s.request_id].grammar)) for s in sequences)
        return [(s, problem) for s, problem in begun if problem is not None]

    def _score_prompts(self, step: Step, prompt_logits: dict[int, Any]) -> list[Problem]:
        problems: list[Problem] = []
        for index, logits in prompt_logits.items():
            row = step.rows[index]
            entry = self._open[row.sequence.request_id]
            skip, targets = entry.unscored(row)
            top = row.sequence.params.prompt_logprobs or 0
            try:
                entry.add_scores(self._sampler.prompt_logprobs(logits[skip : skip + len(targets)], targets, top))
            except Exception as error:
                log.exception("the prompt of %r could not be scored", row.sequence)
                problems += [(s, error) for s in (row.sequence, *row.siblings)]
        return problems

    def _output(self, settled: Settled, logprobs: TokenLogprobs | None) -> list[SequenceOutput]:
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
            output.prompt_logprobs = entry.take_scores()
        if settled.finish_reason is not None:
            self._close(sequence)
            return [output]
        problem = isolation.advance(sequence, settled.token_id)
        return [output] if problem is None else self._fail(sequence, problem)

    def _fail(self, sequence: Sequence, error: object) -> list[SequenceOutput]:
        """End a sequence, and those that wait for its prompt, with an error; all of a request at fault."""
        if isinstance(error, RequestFault):
            return self._refuse(sequence, error)
        ended = self._scheduler.fail(sequence)
        for each in ended:
            self._close(each)
        return [_error(each.request_id, each.index, _text(error), "engine") for each in ended]

    def _refuse(self, sequence: Sequence, fault: RequestFault) -> list[SequenceOutput]:
        """Refuse a request that has begun. As on arrival, one output stands for all its answers."""
        ended = self._scheduler.abort(sequence.request_id)
        for each in ended:
            self._close(each)
        return [_error(sequence.request_id, sequence.index, str(fault), "invalid")] if ended else []

    def _fail_all(self, problems: list[Problem]) -> list[SequenceOutput]:
        return [output for sequence, error in problems for output in self._fail(sequence, error)]

    def _close(self, sequence: Sequence) -> None:
        entry = self._open[sequence.request_id]
        entry.left -= 1
        if entry.left <= 0:
            del self._open[sequence.request_id]


def _text(error: object) -> str:
    return str(error) or type(error).__name__


def _error(request_id: str, index: int, text: str, kind: ErrorKind) -> SequenceOutput:
    return SequenceOutput(request_id=request_id, index=index, finish_reason="error", error=text, error_kind=kind)
