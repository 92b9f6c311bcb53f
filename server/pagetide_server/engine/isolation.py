"""Isolation: work for one answer that fails is reported as that answer's problem, and harms no other."""

from __future__ import annotations

import logging
from typing import Any

from .protocols import Grammar, Launched, Runner, Sampler
from .sampling.sampled import NO_TOKEN, Sampled
from .sequence import Sequence, Status, Step

log = logging.getLogger(__name__)


def launch(sampler: Sampler, logits: Any, sequences: list[Sequence]) -> Launched | None:
    """Begin to sample, without waiting; None if that fails or cannot be: then `sample` finds the answer at fault."""
    try:
        return sampler.launch(logits, sequences)
    except Exception:
        log.exception("sampling %d sequences could not be begun", len(sequences))
        return None


def sample(runner: Runner, sampler: Sampler, step: Step, logits: Any) -> Sampled:
    """Sample for `step.sampling()`, all at once; if that raises, each alone."""
    sequences = step.sampling()
    try:
        sampled = sampler.sample(logits, sequences)
    except Exception:
        log.exception("sampling %d sequences at once failed; each is sampled alone", len(sequences))
    else:
        return sampled
    # The sampler may have changed the logits. Computing them again writes the same keys and values as before; blocks
    # must not be moved twice. One that has ended meanwhile has none.
    choices = Sampled([NO_TOKEN] * len(sequences), [None] * len(sequences), {})
    again = Step(rows=[row for row in step.rows if row.sequence.status is not Status.FINISHED])
    if again.rows:
        logits, places = runner.execute(again).sampling, {s: row for row, s in enumerate(sequences)}
        for row, sequence in enumerate(again.sampling()):
            _sample_one(sampler, logits[row : row + 1], sequence, places[sequence], choices)
    return choices


def _sample_one(sampler: Sampler, logits: Any, sequence: Sequence, row: int, choices: Sampled) -> None:
    try:
        sampled = sampler.sample(logits, [sequence])
    except Exception as error:
        log.exception("sampling for %r failed", sequence)
        choices.errors[row] = error
        return
    (choices.token_ids[row],), (choices.logprobs[row],) = sampled.token_ids, sampled.logprobs
    if sampled.errors:
        choices.errors[row] = sampled.errors[0]


def begin(sequence: Sequence, grammar: Grammar | None) -> object | None:
    """Give a sequence with a structure its matcher, at its first token; what went wrong, or None."""
    if grammar is None or sequence.matcher is not None:
        return None
    try:
        sequence.matcher = grammar.matcher()
    except Exception as error:
        log.exception("%r gets no matcher", sequence)
        return error
    return None


def advance(sequence: Sequence, token_id: int | None) -> object | None:
    """Take a sequence's matcher, if it has one, past its new token; what went wrong, or None."""
    if sequence.matcher is None:
        return None
    try:
        accepted = sequence.matcher.accept(token_id)
        if accepted:
            return None
        # Its masks hold such tokens off: it stopped at a limit of its own, or (with no error) is broken.
        return sequence.matcher.fault or f"it does not allow token {token_id}"
    except Exception as error:
        log.exception("the matcher of %r failed", sequence)
        return error
