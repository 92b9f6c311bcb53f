"""One answer in the making: from the engine's outputs for a sequence to what its client may see now."""

from __future__ import annotations

import dataclasses

from ..engine.messages import SamplingParams, SequenceOutput, TokenLogprobs
from ..text.detokenizer import Detokenizer
from ..text.tokenizer import Tokenizer
from .record import Record


@dataclasses.dataclass(slots=True)
class Delta:
    """What is new of one answer. `index` counts over all answers of the HTTP request."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class Answer:
    """One sequence: its text, what of it is still held back, and how it ended."""

    __slots__ = (
        "_detokenizer",
        "_last",
        "_pending_ids",
        "_pending_logprobs",
        "_record",
        "finish_reason",
        "generated",
        "index",
        "logprob_sum",
    )

    def __init__(
        self, index: int, tokenizer: Tokenizer, prompt: list[int], params: SamplingParams, record: Record
    ) -> None:
        self.index = index
        self._detokenizer = Detokenizer(tokenizer, prompt, params)
        self._record = record
        self._last = 0.0
        self._pending_ids: list[int] = []
        self._pending_logprobs: list[TokenLogprobs] = []
        self.finish_reason: str | None = None
        self.generated = 0
        self.logprob_sum = 0.0

    def take(self, output: SequenceOutput, now: float) -> Delta | None:
        """What the client may see after this output, or None while there is no text to show.

        Tokens whose text is held back stay with it, so that no delta is empty but the one that ends an answer.
        """
        finished = output.finish_reason is not None
        piece = self._detokenizer.push(output.token_ids, finished, output.stop_token_id)
        self._count(output, piece.tokens_used, now)
        self._pending_ids += output.token_ids[: piece.tokens_used]
        if output.logprobs:
            used = output.logprobs[: piece.tokens_used]
            self._pending_logprobs += used
            self.logprob_sum += sum(entry.logprob for entry in used)
        if piece.stopped is not None:
            self.finish_reason = "stop"
        elif finished:
            self.finish_reason = output.finish_reason
        elif not piece.text:
            return None
        reason = piece.stopped if piece.stopped is not None else output.stop_token_id
        return self._release(piece.text, reason)

    def skip(self) -> Delta:
        """End the answer without a token: only its prompt was to be scored."""
        self.finish_reason = "length"
        return Delta(self.index, "", [], [], "length")

    def _count(self, output: SequenceOutput, used: int, now: float) -> None:
        if used:
            first = self.generated == 0
            self._record.tokens(used, first, 0.0 if first else now - self._last, now)
            self.generated += used
            self._last = now

    def _release(self, text: str, stop_reason: str | int | None) -> Delta:
        delta = Delta(self.index, text, self._pending_ids, self._pending_logprobs, self.finish_reason, stop_reason)
        self._pending_ids, self._pending_logprobs = [], []
        return delta
