"""Changes to logits that a request asks for, before its token is chosen. All are made in place, to single entries."""

from __future__ import annotations

import array
from collections.abc import Iterable

import torch

from .messages import SamplingParams
from .sequence import Sequence


def changes_logits(params: SamplingParams) -> bool:
    """Whether `adjust` may have anything to do for a request, at any point of its answer."""
    return bool(
        params.repetition_penalty != 1
        or params.frequency_penalty
        or params.presence_penalty
        or params.logit_bias
        or params.bad_words_token_ids
        or params.min_tokens
    )


def adjust(logits: torch.Tensor, sequence: Sequence, eos_token_ids: frozenset[int]) -> None:
    """Apply what the sequence's request asks for to its row.

    In this order: repetition, frequency and presence penalty (of the model's own logits), logit_bias, bad words,
    min_tokens. Repetition counts prompt and answer, the other two the answer only.

    Args:
        logits: [vocabulary] float32; changed.
        sequence: whose next token is to be chosen.
        eos_token_ids: tokens that end an answer.
    """
    params = sequence.params
    if params.repetition_penalty != 1 and sequence.tokens:
        _penalize_repetition(logits, _ids(sequence.tokens, logits), params.repetition_penalty)
    if sequence.generated and (params.frequency_penalty or params.presence_penalty):
        answer = _ids(sequence.tokens[sequence.prompt_len :], logits)
        _penalize_use(logits, answer, params.frequency_penalty, params.presence_penalty)
    if params.logit_bias:
        ids = _ids(params.logit_bias, logits)
        bias = torch.tensor(list(params.logit_bias.values()), dtype=torch.float32, device=logits.device)
        logits.index_add_(0, ids, bias)
    if banned := [*_bad_word_ends(sequence), *_early_ends(sequence, eos_token_ids)]:
        logits.index_fill_(0, _ids(banned, logits), float("-inf"))


def _ids(token_ids: Iterable[int], logits: torch.Tensor) -> torch.Tensor:
    """[n] int64 on the device of the logits. By way of an array, which is several times quicker than from a list."""
    return torch.frombuffer(array.array("q", token_ids), dtype=torch.int64).to(logits.device)


def _penalize_repetition(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> None:
    """Keskar et al., "CTRL", 2019, section 4.1: divide positive logits by the penalty, multiply negative ones.

    A token that occurs twice is written twice, with the same value.
    """
    old = logits[seen]
    logits[seen] = torch.where(old > 0, old / penalty, old * penalty)


def _penalize_use(logits: torch.Tensor, used: torch.Tensor, frequency: float, presence: float) -> None:
    """OpenAI's formula: logit - count * frequency - (count > 0) * presence."""
    if presence:
        logits[used] = logits[used] - presence
    if frequency:
        logits.index_add_(0, used, torch.full_like(used, -frequency, dtype=torch.float32))


def _bad_word_ends(sequence: Sequence) -> list[int]:
    """Tokens that would complete a bad word."""
    ends = []
    for word in sequence.params.bad_words_token_ids:
        begun = len(word) - 1
        if begun <= sequence.generated and (not begun or sequence.tokens[-begun:] == list(word[:-1])):
            ends.append(word[-1])
    return ends


def _early_ends(sequence: Sequence, eos_token_ids: frozenset[int]) -> Iterable[int]:
    """Tokens that would end the answer before min_tokens."""
    params = sequence.params
    if sequence.generated >= params.min_tokens:
        return ()
    # A finished structure has no other continuation than the end.
    if sequence.matcher is not None and sequence.matcher.is_finished():
        return ()
    return (*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids))
