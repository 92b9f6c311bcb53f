"""An answer of an HTTP request: as text makes it, and reported to the metrics as it grows."""

from __future__ import annotations

from collections.abc import Sequence

from ..text.answer import Answer, Delta
from ..text.tokenizer import Tokenizer
from ..wire.messages import SamplingParams, SequenceOutput
from .record import Record


class RecordedAnswer(Answer):
    """An answer whose tokens are reported to the record of its prompt."""

    __slots__ = ("_last", "_record")

    def __init__(
        self, index: int, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams, record: Record
    ) -> None:
        super().__init__(index, tokenizer, prompt_token_ids, params)
        self._record = record
        self._last = 0.0

    def take_at(self, output: SequenceOutput, now: float) -> Delta | None:
        """As `take`; the tokens came at `now`."""
        before = self.generated
        delta = self.take(output)
        if used := self.generated - before:
            self._record.tokens(used, before == 0, now - self._last if before else 0.0, now)
            self._last = now
        return delta

    def take_token_at(self, token_id: int, now: float) -> str:
        """As `take_token`; the token came at `now`."""
        text = self.take_token(token_id)
        self._record.tokens(1, False, now - self._last, now)
        self._last = now
        return text
