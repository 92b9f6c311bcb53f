"""Changes to logits that requests ask for, before their tokens are chosen. All are made in place, to single entries."""

from __future__ import annotations

import array
from collections.abc import Iterable, Mapping

import torch

from ...wire.messages import SamplingParams
from ..sequence import Sequence


def changes_logits(params: SamplingParams) -> bool:
    """Whether `adjust` may have anything to do for a request, at any point of its answer."""
    return bool(
        params.repetition_penalty != 1
        or params.frequency_penalty
        or params.presence_penalty
        or params.logit_bias
        or params.allowed_token_ids
        or params.bad_words_token_ids
        or params.min_tokens
        or (params.ignore_eos and params.structure is not None)
    )


def adjust(logits: torch.Tensor, rows: list[tuple[int, Sequence]], eos_token_ids: frozenset[int]) -> None:
    """Apply what requests ask for to their rows.

    In this order: repetition, frequency and presence penalty (of the model's own logits), logit_bias, bad words and
    min_tokens, allowed_token_ids. Repetition counts prompt and answer, the other two the answer only.

    Args:
        logits: [rows, vocabulary] float32, contiguous; changed.
        rows: row and the sequence whose next token is to be chosen from it.
        eos_token_ids: tokens that end an answer.
    """
    repetition, presence, frequency, bias, banned = (_Entries(logits) for _ in range(5))
    for row, sequence in rows:
        params = sequence.params
        if params.repetition_penalty != 1:
            repetition.add(row, sequence.tokens, params.repetition_penalty)
        if params.frequency_penalty or params.presence_penalty:
            answer = sequence.tokens[sequence.prompt_len :]
            presence.add(row, answer, params.presence_penalty)
            frequency.add(row, answer, params.frequency_penalty)
        bias.add_values(row, params.logit_bias)
        banned.add(row, [*_bad_word_ends(sequence), *_early_ends(sequence, eos_token_ids)], float("-inf"))
    _penalize_repetition(repetition)
    # OpenAI's formula: logit - count * frequency - (count > 0) * presence.
    presence.subtract_once()
    frequency.add_each(-1)
    bias.add_each(1)
    banned.add_each(1)
    for row, sequence in rows:
        if sequence.params.allowed_token_ids:
            _keep_only(logits[row], sequence.params.allowed_token_ids)


def _keep_only(logits: torch.Tensor, token_ids: tuple[int, ...]) -> None:
    kept = _as_tensor(token_ids).to(logits.device)
    values = logits[kept]
    logits.fill_(float("-inf"))
    logits[kept] = values


def _as_tensor(token_ids: Iterable[int]) -> torch.Tensor:
    """int64, by way of an array, which is several times quicker than from a list; not of nothing."""
    return torch.frombuffer(array.array("q", token_ids), dtype=torch.int64)


class _Entries:
    """Single logits of several rows, each with a number. A token that is named twice has two entries."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.flat = logits.view(-1)
        self._width = logits.shape[1]
        self._places: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []

    def add(self, row: int, token_ids: Iterable[int], value: float) -> None:
        """More entries of one row; a value of 0 has no effect."""
        ids = array.array("q", token_ids)
        if ids and value:
            self._places.append(_as_tensor(ids) + row * self._width)
            self._values.append(torch.full((len(ids),), value))

    def add_values(self, row: int, values: Mapping[int, float]) -> None:
        """More entries of one row, each with a value of its own."""
        if values:
            self._places.append(_as_tensor(values) + row * self._width)
            self._values.append(torch.frombuffer(array.array("f", values.values()), dtype=torch.float32))

    def __bool__(self) -> bool:
        return bool(self._places)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(places in `flat`, values), on its device."""
        return torch.cat(self._places).to(self.flat.device), torch.cat(self._values).to(self.flat.device)

    def add_each(self, sign: int) -> None:
        """Add each entry's value, `sign` times."""
        if self:
            places, values = self.tensors()
            self.flat.index_add_(0, places, values, alpha=sign)

    def subtract_once(self) -> None:
        """Subtract a token's value once, however often it is named."""
        if self:
            places, values = self.tensors()
            self.flat[places] = self.flat[places] - values


def _penalize_repetition(seen: _Entries) -> None:
    """Keskar et al., "CTRL", 2019, section 4.1: divide positive logits by the penalty, multiply negative ones.

    A token that occurs twice is written twice, with the same value.
    """
    if seen:
        places, penalties = seen.tensors()
        old = seen.flat[places]
        seen.flat[places] = torch.where(old > 0, old / penalties, old * penalties)


def _bad_word_ends(sequence: Sequence) -> list[int]:
    """Tokens that would complete a bad word."""
    ends = []
    for word in sequence.params.bad_words_token_ids:
        begun = len(word) - 1
        if begun <= sequence.generated and (not begun or sequence.tokens[-begun:] == list(word[:-1])):
            ends.append(word[-1])
    return ends


def _early_ends(sequence: Sequence, eos_token_ids: frozenset[int]) -> Iterable[int]:
    """Tokens that would end the answer before min_tokens, or where its structure allows it to go on for ignore_eos."""
    params = sequence.params
    is_early = sequence.generated < params.min_tokens
    # Without a structure, ignore_eos lets end tokens come like any other.
    holds_eos = sequence.matcher is not None if params.ignore_eos else is_early
    return (*(params.stop_token_ids if is_early else ()), *(eos_token_ids if holds_eos else ()))
