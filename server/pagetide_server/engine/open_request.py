"""OpenRequest: what the loop remembers of a request between its arrival and its last token."""

from __future__ import annotations

import logging

from pagetide_spec.errors import PagetideError

from ..wire.messages import AddRequest, ErrorKind, SequenceOutput, TokenLogprobs
from .faults import Busy
from .limits import answers
from .protocols import Compilation, Grammar
from .scheduler import Settled
from .sequence import Row

log = logging.getLogger(__name__)


class OpenRequest:
    """One request in the engine.

    Attributes:
        place: its place in the order of arrival, however long its grammar takes: random numbers depend on it.
        left: answers that have not ended.
        scheduled: time of its first step, 0 before.
        compilation: its grammar on the way; None for a request without structure, and once it is there.
        withdrawn: answers that were aborted while the grammar was compiled, before the scheduler knew of them.
    """

    __slots__ = ("_scored", "compilation", "grammar", "left", "place", "request", "scheduled", "withdrawn")

    def __init__(self, request: AddRequest, place: int, compilation: Compilation | None = None) -> None:
        self.request, self.place, self.compilation = request, place, compilation
        self.left = answers(request.params)
        self.scheduled = 0.0
        self.grammar: Grammar | None = None
        self.withdrawn: set[int] = set()
        # One entry a prompt token so far, none for the first; None when they were not asked for or have been taken.
        self._scored: list[TokenLogprobs | None] | None = [None] if request.params.prompt_logprobs is not None else None

    def withdraw(self, index: int | None) -> list[int]:
        """Abort one answer or all before the scheduler knows of them; the indices that ended by it."""
        every = range(answers(self.request.params))
        ended = [i for i in every if index in (None, i) and i not in self.withdrawn]
        self.withdrawn.update(ended)
        self.left -= len(ended)
        return ended

    def take_grammar(self) -> list[SequenceOutput]:
        """Keep the grammar, whose compilation is done; where there is none, what ends the request."""
        assert self.compilation is not None
        request_id = self.request.request_id
        try:
            self.grammar = self.compilation.result()
        except PagetideError as error:
            kind: ErrorKind = "queue_full" if isinstance(error, Busy) else "structure"
            return [error_output(request_id, 0, text_of(error), kind)]
        except Exception as error:
            log.exception("the structure of request %s could not be compiled", request_id)
            return [error_output(request_id, i, text_of(error), "engine") for i in self.withdraw(None)]
        return []

    # ---- the prompt's own log probabilities

    def unscored(self, row: Row) -> tuple[int, list[int]]:
        """(leading positions of the row to skip, the tokens behind the others) for the log probabilities still missing.

        A prompt that was preempted is computed once more, in other pieces: what is known of its log probabilities is
        not computed twice.
        """
        sequence = row.sequence
        if self._scored is None:
            return 0, []
        skip = max(0, len(self._scored) - 1 - row.start)
        return skip, sequence.tokens[row.start + skip + 1 : min(row.start + row.count + 1, sequence.prompt_len)]

    def add_scores(self, scores: list[TokenLogprobs]) -> None:
        """Append the log probabilities of the next prompt tokens."""
        if self._scored is not None:
            self._scored += scores

    def take_scores(self) -> list[TokenLogprobs | None] | None:
        """All of them, once: for the request's first output."""
        scored, self._scored = self._scored, None
        return scored

    # ---- outputs

    def output(self, settled: Settled, logprobs: TokenLogprobs | None) -> SequenceOutput:
        """What a step brought for one of the answers; with the first token goes what is known of the prompt."""
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
            output.scheduled = self.scheduled
            output.cached_tokens = sequence.cached_tokens
            output.prompt_logprobs = self.take_scores()
        return output


def text_of(error: object) -> str:
    """What to say of an error."""
    return str(error) or type(error).__name__


def error_output(request_id: str, index: int, text: str, kind: ErrorKind) -> SequenceOutput:
    """The last output of an answer that ends with an error."""
    return SequenceOutput(request_id=request_id, index=index, finish_reason="error", error=text, error_kind=kind)
