"""The logits' matrix of a network whose linear layers were packed."""

from __future__ import annotations

from typing import Any

import torch

from pagetide_kernels.linear_argmax import Screen, linear_argmax, screen_of

from .packed import PackedLinear


class Head:
    """hidden float32 [rows, size] -> logits, or the most probable tokens alone.

    Attributes:
        chooses: whether `argmax` may be asked: the logits are the product and nothing else, and an op can search it.
    """

    def __init__(self, matrix: Any, soft_cap: float | None) -> None:
        """`matrix` is a linear layer; logits are bounded by `soft_cap`, if there is one."""
        self._matrix, self._soft_cap = matrix, soft_cap
        is_plain = isinstance(matrix, PackedLinear) and matrix.packed.panels and matrix.bias is None
        self.chooses = is_plain and soft_cap is None
        self._screen: Screen | None = None

    def prepare(self) -> None:
        """Make the int8 filter with which `argmax` reads few of the weights; it takes memory, see `nbytes`."""
        if self.chooses and self._screen is None:
            self._screen = screen_of(self._matrix.packed)

    @property
    def nbytes(self) -> int:
        """Memory that is taken beside the matrix."""
        return 0 if self._screen is None else self._screen.nbytes

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return int(self._matrix.out_features)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, size] -> float32 [rows, vocab]"""
        logits: torch.Tensor = self._matrix(hidden)
        if self._soft_cap is not None:
            logits.div_(self._soft_cap).tanh_().mul_(self._soft_cap)
        return logits

    def argmax(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(places int64 [rows], values float32 [rows]) of the largest logit of each row, where this `chooses`."""
        return linear_argmax(hidden, self._matrix.packed, self._screen)
