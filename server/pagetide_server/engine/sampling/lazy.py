"""Logits that are computed only where they are asked for."""

from __future__ import annotations

from typing import Protocol

import torch


class Head(Protocol):
    """The last product of a network (model/head.py)."""

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [rows, size] -> float32 [rows, vocabulary]"""

    def argmax(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """hidden [rows, size] -> of each row of its logits, the first of the largest int64 [rows], and that float32."""


class LazyLogits:
    """Logits [rows, vocabulary] in the form of hidden states: a greedy choice can be made without all of them."""

    def __init__(self, hidden: torch.Tensor, head: Head) -> None:
        """hidden: [rows, size], what `head` makes logits of."""
        self._hidden, self._head = hidden, head

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, vocabulary)"""
        return len(self._hidden), self._head.vocab_size

    def __getitem__(self, rows: slice | list[int]) -> LazyLogits:
        """Some rows."""
        return LazyLogits(self._hidden[rows], self._head)

    def written(self) -> torch.Tensor:
        """All of them: float32 [rows, vocabulary], whose memory is the caller's."""
        return self._head.logits(self._hidden)

    def argmax(self) -> tuple[list[int], list[float]]:
        """Of each row the first of the largest (where there is a NaN, the first NaN), and its logit."""
        places, values = self._head.argmax(self._hidden)
        return places.tolist(), values.tolist()
