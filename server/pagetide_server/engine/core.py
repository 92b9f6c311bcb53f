"""The engine's loop body: schedule -> forward -> sample -> settle, and what comes of it for each request."""

from __future__ import annotations

import logging
import time
from typing import Any

from ..wire.messages import (
    AbortRequest,
    AddRequest,
    EngineStats,
    Ready,
    SequenceOutput,
    StepOutput,
    TokenLogprobs,
)
from . import isolation
from .faults import DeviceLost, RequestFault
from .grammar_queue import GrammarQueue
from .in_flight import InFlightStep
from .open_request import OpenRequest, error_output, text_of
from .protocols import Compiler, Launched, Runner, Sampler
from .sampling.sampled import Sampled
from .scheduler import RequestRefused, Scheduler, Settled
from .sequence import Sequence, Status, Step

log = logging.getLogger(__name__)

FAILED_STEP = "a step failed; its %d sequences finish with an error"
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
        self,
        scheduler: Scheduler,
        runner: Runner,
        sampler: Sampler,
        compiler: Compiler,
        ready: Ready,
        async_scheduling: bool = False,
    ) -> None:
        """`async_scheduling`: launch a step before the tokens of the last are known, as a device of its own allows."""
        self._scheduler, self._runner, self._sampler = scheduler, runner, sampler
        self._async_scheduling = async_scheduling
        self._in_flight: InFlightStep | None = None  # the step whose tokens are not known yet
        self.ready = ready
        self._open: dict[str, OpenRequest] = {}
        self._compiling = GrammarQueue(compiler)  # some of `_open`

    def add(self, request: AddRequest) -> list[SequenceOutput]:
        """Take a request in; the refusal as an error output, or nothing."""
        if request.request_id in self._open:
            return [error_output(request.request_id, 0, f"request id {request.request_id!r} is in use", "invalid")]
        try:
            self._scheduler.check(request, waiting_elsewhere=len(self._compiling))
        except RequestRefused as error:
            return [error_output(request.request_id, 0, str(error), error.kind)]
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
        return self._in_flight is not None or self._scheduler.has_work() or self._compiling.has_compiled()

    def is_waiting(self) -> bool:
        """Whether a request waits for its grammar to be compiled."""
        return len(self._compiling) > 0

    def step(self) -> StepOutput:
        """Advance every scheduled sequence; what came of it, or, with async scheduling, of the step before.

        Raises:
            DeviceLost: the device computes nothing any more.
        """
        started = time.monotonic()
        outputs = self._admit_compiled()
        if self._in_flight is not None and not self._scheduler.can_schedule_ahead():
            outputs += self._finish_in_flight()
        step = self._scheduler.schedule()
        for leader in step.started:
            self._open[leader.request_id].scheduled = started
        outputs += self._compute(step) if step.rows else self._finish_in_flight()
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
        outputs: list[SequenceOutput] = []
        for entry in self._compiling.take_compiled():
            request_id = entry.request.request_id
            if refused := entry.take_grammar():
                del self._open[request_id]
                outputs += refused
                continue
            self._scheduler.admit(entry.request, entry.place)
            for index in entry.withdrawn:
                self._scheduler.abort(request_id, index)
        return outputs

    def _compute(self, step: Step) -> list[SequenceOutput]:
        """Forward and sample. Settles the step before, if it is under way, and this one, if it will not be."""
        sequences = step.sampling()
        try:
            ahead = (self._in_flight.device_tokens(),) if self._in_flight else ()
            logits = self._runner.execute(step, *ahead)
            tokens = self._launch(sequences, logits)
        except DeviceLost:
            raise
        except Exception as error:  # whatever a model raises must not take the other requests along
            log.exception(FAILED_STEP, len(step.rows))
            return self._finish_in_flight() + self._fail_all([(s, error) for s in step.touched()])
        outputs = self._finish_in_flight()
        if tokens is not None:
            self._scheduler.advance(step)
            self._in_flight = InFlightStep(step, sequences, tokens)
            return outputs
        return outputs + self._complete(step, sequences, logits)

    def _launch(self, sequences: list[Sequence], logits: Any) -> Launched | None:
        if not self._async_scheduling or not sequences or logits.prompt:
            return None
        return isolation.launch(self._sampler, logits.sampling, sequences)

    def _complete(self, step: Step, sequences: list[Sequence], logits: Any) -> list[SequenceOutput]:
        """Sample and settle a step whose logits are there."""
        try:
            problems = self._begin_structures(sequences) + self._score_prompts(step, logits.prompt)
            chosen = isolation.sample(self._runner, self._sampler, step, logits.sampling)
        except DeviceLost:
            raise
        except Exception as error:
            log.exception(FAILED_STEP, len(step.rows))
            return self._fail_all([(s, error) for s in step.touched()])
        return self._fail_all(problems) + self._settle(step, sequences, chosen)

    def _finish_in_flight(self) -> list[SequenceOutput]:
        """Wait for the step under way, if there is one, and settle it."""
        last, self._in_flight = self._in_flight, None
        return [] if last is None else self._settle(last.step, last.sequences, last.wait())

    def _settle(self, step: Step, sequences: list[Sequence], chosen: Sampled) -> list[SequenceOutput]:
        outputs = self._fail_all([(sequences[row], error) for row, error in chosen.errors.items()])
        logprobs = {id(s): found for s, found in zip(sequences, chosen.logprobs, strict=True) if found is not None}
        for settled in self._scheduler.settle(step, chosen.token_ids):
            # Another answer of its request may have shown that the request is at fault, and ended both.
            if settled.finish_reason is not None or settled.sequence.status is Status.RUNNING:
                outputs += self._output(settled, logprobs.get(id(settled.sequence)))
        return outputs

    def _begin_structures(self, sequences: list[Sequence]) -> list[Problem]:
        """Give matchers to the sequences whose answer begins."""
        unfinished = (s for s in sequences if s.status is not Status.FINISHED)
        begun = ((s, isolation.begin(s, self._open[s.request_id].grammar)) for s in unfinished)
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
                log.exception("the prompt logprobs of %r failed", row.sequence)
                problems += [(s, error) for s in (row.sequence, *row.siblings)]
        return problems

    def _output(self, settled: Settled, logprobs: TokenLogprobs | None) -> list[SequenceOutput]:
        sequence = settled.sequence
        output = self._open[sequence.request_id].output(settled, logprobs)
        if settled.finish_reason is not None:
            self._close(sequence)
            return [output]
        problem = isolation.advance(sequence, settled.token_id)
        return [output] if problem is None else self._fail(sequence, problem)

    def _fail(self, sequence: Sequence, error: object) -> list[SequenceOutput]:
        """End a sequence, and those that wait for its prompt, with an error; all of a request at fault."""
        if sequence.status is Status.FINISHED:
            return []
        if isinstance(error, RequestFault):
            # It is refused. As on arrival, one output stands for all its answers.
            ended = self._scheduler.abort(sequence.request_id)
            outputs = [error_output(sequence.request_id, sequence.index, str(error), error.kind)]
        else:
            ended = self._scheduler.fail(sequence)
            outputs = [error_output(s.request_id, s.index, text_of(error), "engine") for s in ended]
        for each in ended:
            self._close(each)
        return outputs

    def _fail_all(self, problems: list[Problem]) -> list[SequenceOutput]:
        return [output for sequence, error in problems for output in self._fail(sequence, error)]

    def _close(self, sequence: Sequence) -> None:
        entry = self._open[sequence.request_id]
        entry.left -= 1
        if entry.left <= 0:
            del self._open[sequence.request_id]
