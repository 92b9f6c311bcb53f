"""All answers of one HTTP request: prompts x n, from submission to the last token."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

from ..process.client import EngineClient, Prompt
from ..process.mailbox import Mailbox
from ..text.answer import Delta, joined
from ..text.tokenizer import Tokenizer
from ..wire.messages import SequenceOutput, TokenLogprobs
from .errors import ApiError, refusal
from .metrics import ServerMetrics
from .record import Record
from .recorded_answer import RecordedAnswer


@dataclasses.dataclass(slots=True)
class Run:
    """One prompt and its answers."""

    prompt: Prompt
    record: Record
    answers: list[RecordedAnswer]
    structure_field: str
    prompt_logprobs: list[TokenLogprobs | None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether an answer still grows."""
        return any(answer.finish_reason is None for answer in self.answers)


@contextlib.contextmanager
def generating(
    engine: EngineClient,
    tokenizer: Tokenizer,
    metrics: ServerMetrics,
    prompts: Sequence[Prompt],
    structure_field: str,
    arrival: float,
    name: str = "r",
) -> Iterator[Generation]:
    """Submit prompts; leaving the context aborts what has not ended, and counts it.

    Args:
        structure_field: what of the HTTP request asked for a structure; empty: nothing did.
        arrival: when the HTTP request came.
        name: what the engine's log calls the request.

    Raises:
        EngineDead: there is no engine.
    """
    submitted = time.monotonic()
    runs: list[Run] = []
    first = 0
    for prompt in prompts:
        record = Record(metrics, arrival, submitted, len(prompt.token_ids))
        count = prompt.params.best_of or prompt.params.n
        answers = [RecordedAnswer(first + i, tokenizer, prompt.token_ids, prompt.params, record) for i in range(count)]
        runs.append(Run(prompt, record, answers, structure_field))
        first += count
    reason = "abort"
    try:
        with engine.open(prompts, submitted, name) as box:
            yield Generation(engine, metrics, box, runs)
    except Exception as error:
        # Prompts that run beside one that the engine refused are cut, by us.
        reason = "abort" if isinstance(error, ApiError) else "error"
        raise
    finally:
        for run in runs:
            run.record.finish(reason)


class Generation:
    """Gives out the deltas of a request's answers.

    Attributes:
        runs: the prompts with their answers.
    """

    __slots__ = ("_box", "_by_id", "_engine", "_fault", "_metrics", "_open", "runs")

    def __init__(self, engine: EngineClient, metrics: ServerMetrics, box: Mailbox, runs: list[Run]) -> None:
        self._engine, self._metrics, self._box = engine, metrics, box
        self.runs = runs
        self._by_id = dict(zip(box.ids, runs, strict=True))
        self._open = set(box.ids)
        # What to raise once the deltas before it have been given out.
        self._fault: ApiError | None = None

    async def next(self) -> list[Delta]:
        """The next deltas, at least one; an empty list once everything has ended.

        Raises:
            ApiError: the engine refused a prompt, or failed on it.
            EngineDead: the engine is gone.
        """
        deltas: list[Delta] = []
        while self._open and not deltas:
            if self._fault is not None:
                raise self._fault
            deltas = self.absorb(await self._box.take())
        return deltas

    def absorb(self, outputs: Sequence[SequenceOutput]) -> list[Delta]:
        """The deltas that outputs make, which may be none; an error among them is kept for the next call of `next`."""
        now = time.monotonic()
        deltas = []
        for place, output in enumerate(outputs):
            if self._is_failure(output):
                self._fault = self._failed([o for o in outputs[place:] if self._is_failure(o)])
                break
            if (delta := self._take(output, now)) is not None:
                deltas.append(delta)
        return deltas

    def absorb_plain(self, output: SequenceOutput) -> Delta | None:
        """The delta of one output that is neither an end nor an error."""
        return self._take(output, time.monotonic())

    def tap(self, tap: Callable[[SequenceOutput], bool], token_tap: Callable[[int], bool] | None = None) -> None:
        """Have `tap` see the outputs that come while `next` waits; what it takes does not reach `next`.

        `token_tap` sees those first that are but a token, of a request with one answer.
        """
        self._box.tap, self._box.token_tap = tap, token_tap

    async def finish(self) -> list[Delta]:
        """Everything at once: one delta for each answer, in the order of their indexes."""
        found: dict[int, list[Delta]] = {answer.index: [] for run in self.runs for answer in run.answers}
        while deltas := await self.next():
            for delta in deltas:
                found[delta.index].append(delta)
        return [joined(index, parts) for index, parts in found.items()]

    def sole_answer(self) -> RecordedAnswer | None:
        """The request's answer, if it has only one."""
        answers = [answer for run in self.runs for answer in run.answers]
        return answers[0] if len(answers) == 1 else None

    # ---- totals

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(run.record.prompt_tokens for run in self.runs)

    @property
    def completion_tokens(self) -> int:
        """Tokens of all answers so far, those that `best_of` drops included."""
        return sum(run.record.generated for run in self.runs)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache."""
        return sum(run.record.cached_tokens for run in self.runs)

    # ---- outputs

    def _is_failure(self, output: SequenceOutput) -> bool:
        """Whether an output is an error, and not of an answer that a stop string has ended already."""
        if output.finish_reason != "error":
            return False
        return self._by_id[output.request_id].answers[output.index].finish_reason is None

    def _take(self, output: SequenceOutput, now: float) -> Delta | None:
        run = self._by_id[output.request_id]
        run.record.begun(output)
        if output.prompt_logprobs is not None:
            run.prompt_logprobs = output.prompt_logprobs
        answer = run.answers[output.index]
        delta = answer.take_at(output, now)
        if delta is not None and delta.finish_reason is not None:
            self._answered(run, output)
        return delta

    def _answered(self, run: Run, output: SequenceOutput) -> None:
        """One answer is complete: abort it at the engine if it still runs, and close the request after its last."""
        if output.finish_reason is None:
            self._engine.stop(output.request_id, output.index)
        if not run.is_open:
            self._open.discard(output.request_id)
            self._engine.ended(output.request_id)
            # The end may have been found behind the back of a reader that waits.
            self._box.wake()
            run.record.finish(run.answers[0].finish_reason or "stop")

    def _failed(self, errors: list[SequenceOutput]) -> ApiError:
        """What the engine said of requests; those that it refused before their first token count nowhere."""
        for output in errors:
            record = self._by_id[output.request_id].record
            if output.error_kind != "engine":
                self._engine.ended(output.request_id)
            if output.error_kind == "engine" or record.scheduled:
                record.finish("error")
            else:
                record.dismiss()
        field = self._by_id[errors[0].request_id].structure_field
        return refusal(errors[0], self._metrics.expected_wait(time.monotonic()), field)
