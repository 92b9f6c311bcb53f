"""One answer in the making: from the engine's outputs for a sequence to the text that may be shown now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ..wire.messages import SamplingParams, SequenceOutput, TokenLogprobs
from .detokenizer import Detokenizer
from .tokenizer import Tokenizer


class Delta(msgspec.Struct):
    """What is new of one answer, or all of it. `index` counts over the answers of a request."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class Answer:
    """One sequence: its text, what of it is still held back, and how it ended.

    Attributes:
        generated: tokens that belong to the answer so far.
        finish_reason: how it ended, or None.
        takes_tokens: whether its tokens need not be searched for stop strings.
    """

    __slots__ = (
        "_asked_stops",
        "_detokenizer",
        "_pending_ids",
        "_pending_logprobs",
        "finish_reason",
        "generated",
        "index",
        "takes_tokens",
    )

    def __init__(
        self, index: int, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> None:
        self.index = index
        self.takes_tokens = not params.stop
        self._asked_stops = frozenset(params.stop_token_ids)
        self._detokenizer = Detokenizer(tokenizer, prompt_token_ids, params)
        self._pending_ids: list[int] = []
        self._pending_logprobs: list[TokenLogprobs] = []
        self.finish_reason: str | None = None
        self.generated = 0

    def take(self, output: SequenceOutput) -> Delta | None:
        """What may be shown after this output, or None while there is no text to show.

        Tokens whose text is held back stay with it, so that no delta is empty but the one that ends an answer. After
        that one nothing comes: the engine may have made more before it heard of a stop string.
        """
        if self.finish_reason is not None:
            return None
        finished = output.finish_reason is not None
        piece = self._detokenizer.push(output.token_ids, finished, output.stop_token_id)
        self.generated += piece.tokens_used
        self._pending_ids += output.token_ids[: piece.tokens_used]
        self._pending_logprobs += output.logprobs[: piece.tokens_used]
        if piece.stopped is not None:
            self.finish_reason = "stop"
        elif finished:
            self.finish_reason = output.finish_reason
        elif not piece.text:
            return None
        # The model's own end is no stop that the client asked for, and needs no telling (as vLLM has it).
        asked = output.stop_token_id if output.stop_token_id in self._asked_stops else None
        return self._release(piece.text, asked if piece.stopped is None else piece.stopped)

    def take_token(self, token_id: int) -> str:
        """The text of what `take` gives for a token alone, if it gives anything.

        Only in the middle of an answer that `takes_tokens`.
        """
        self.generated += 1
        text = self._detokenizer.text_of(token_id)
        if not text:
            self._pending_ids.append(token_id)
        elif self._pending_ids:
            self._pending_ids = []
        return text

    def _release(self, text: str, stop_reason: str | int | None) -> Delta:
        delta = Delta(self.index, text, self._pending_ids, self._pending_logprobs, self.finish_reason, stop_reason)
        self._pending_ids, self._pending_logprobs = [], []
        return delta


def joined(index: int, deltas: Iterable[Delta]) -> Delta:
    """All deltas of one answer, in their order, as one."""
    whole, texts = Delta(index, "", [], []), []
    for delta in deltas:
        texts.append(delta.text)
        whole.token_ids += delta.token_ids
        whole.logprobs += delta.logprobs
        whole.finish_reason, whole.stop_reason = delta.finish_reason, delta.stop_reason
    whole.text = "".join(texts)
    return whole


def best(answers: list[Delta], n: int, best_of: int | None) -> list[Delta]:
    """Of each prompt's `best_of` whole answers the `n` whose tokens were most probable on average, best first.

    Where there is nothing to choose, all of them, in their order.
    """
    if best_of is None or best_of <= n:
        return answers
    groups = [answers[i : i + best_of] for i in range(0, len(answers), best_of)]
    return [answer for group in groups for answer in sorted(group, key=_mean_logprob, reverse=True)[:n]]


def _mean_logprob(answer: Delta) -> float:
    entries = answer.logprobs
    return sum(e.logprob for e in entries) / len(entries) if entries else float("-inf")
