"""All answers of one HTTP request: prompts x n, from submission to the last token."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence

from ..engine.client import EngineClient, Prompt
from ..engine.failures import EngineDead
from ..engine.mailbox import Mailbox
from ..engine.messages import SequenceOutput, TokenLogprobs
from ..text.tokenizer import Tokenizer
from .answer import Answer, Delta
from .errors import refusal
from .metrics import ServerMetrics
from .record import Record


@dataclasses.dataclass
class _Run:
    """One prompt and its answers."""

    prompt: Prompt
    record: Record
    answers: list[Answer]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    open_answers: int = 0


class Generation(contextlib.AbstractContextManager["Generation"]):
    """Runs prompts and gives out deltas; a context manager that aborts what has not ended when it is left.

    Args:
        arrival: when the HTTP request came.
        score_only: the prompts are only scored; each answer is empty (the engine's one token is dropped).
        name: what the engine's log calls the request.
    """

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer,
        metrics: ServerMetrics,
        prompts: Sequence[Prompt],
        arrival: float,
        score_only: bool = False,
        name: str = "r",
    ) -> None:
        self._engine, self._score_only, self._name = engine, score_only, name
        submitted = time.monotonic()
        self._submitted = submitted
        self._prompts = prompts
        self.runs: list[_Run] = []
        first = 0
        for prompt in prompts:
            record = Record(metrics, arrival, submitted, len(prompt.token_ids))
            count = prompt.params.best_of or prompt.params.n
            answers = [Answer(first + i, tokenizer, prompt.token_ids, prompt.params, record) for i in range(count)]
            self.runs.append(_Run(prompt, record, answers, open_answers=count))
            first += count
        self._by_id: dict[str, _Run] = {}
        self._left = len(prompts)

    def __enter__(self) -> Generation:
        """Submit the prompts.

        Raises:
            EngineDead: there is no engine.
        """
        self._stack = contextlib.ExitStack()
        self._box: Mailbox = self._stack.enter_context(self._engine.open(self._prompts, self._submitted, self._name))
        self._by_id = dict(zip(self._box.ids, self.runs, strict=True))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Abort what has not ended, and count it."""
        self._stack.close()
        reason = "error" if isinstance(error, EngineDead) else "abort"
        for run in self.runs:
            run.record.finish(reason)

    async def next(self) -> list[Delta]:
        """The next deltas, at least one; an empty list once everything has ended.

        Raises:
            ApiError: the engine refused a prompt, or failed on it.
            EngineDead: the engine is gone.
        """
        deltas: list[Delta] = []
        while self._left and not deltas:
            now_outputs = await self._box.take()
            now = time.monotonic()
            for output in now_outputs:
                self._take(output, now, deltas)
        return deltas

    async def finish(self) -> list[Delta]:
        """Everything at once: one delta for each answer, in the order of their indexes."""
        whole = {a.index: Delta(a.index, "", [], []) for run in self.runs for a in run.answers}
        texts: dict[int, list[str]] = {index: [] for index in whole}
        while deltas := await self.next():
            for delta in deltas:
                target = whole[delta.index]
                texts[delta.index].append(delta.text)
                target.token_ids += delta.token_ids
                target.logprobs += delta.logprobs
                target.finish_reason, target.stop_reason = delta.finish_reason, delta.stop_reason
        for index, parts in texts.items():
            whole[index].text = "".join(parts)
        return [whole[index] for index in sorted(whole)]

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

    def _take(self, output: SequenceOutput, now: float, deltas: list[Delta]) -> None:
        run = self._by_id[output.request_id]
        if output.finish_reason == "error":
            self._fail(run, output)
        run.record.begun(output)
        if output.prompt_logprobs is not None:
            run.prompt_logprobs = output.prompt_logprobs
        answer = run.answers[output.index]
        if answer.finish_reason is not None:
            return  # what the engine had made before it heard of the stop
        delta = answer.skip() if self._score_only else answer.take(output, now)
        if delta is None:
            return
        deltas.append(delta)
        if delta.finish_reason is not None:
            self._answered(run, answer, output)

    def _answered(self, run: _Run, answer: Answer, output: SequenceOutput) -> None:
        """One answer has ended: tell the engine where it does not know, and close the request after its last one."""
        own_index = run.answers.index(answer)
        run.open_answers -= 1
        request_id = output.request_id
        if output.finish_reason is None:
            self._engine.stop(request_id, own_index)
        if not run.open_answers:
            self._left -= 1
            self._engine.ended(request_id)
            run.record.finish(run.answers[0].finish_reason or "stop")

    def _fail(self, run: _Run, output: SequenceOutput) -> None:
        """Raise what the engine said of a request; one that it never took in counts nowhere."""
        if output.error_kind in ("invalid", "queue_full"):
            self._engine.ended(output.request_id)
            for refused in self.runs:
                if not refused.record.scheduled:
                    refused.record.dismiss()
        else:
            run.record.finish("error")
        raise refusal(output)
