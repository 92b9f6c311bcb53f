"""The largest value of each row of a matrix product: the greedy choice, without writing the logits."""

from __future__ import annotations

import dataclasses

import torch

from .cpu import argmax as cpu_argmax
from .cpu import linear as cpu_linear
from .packed_linear import PackedWeight, linear, look_up

# Rows of weights whose errors are computed at a time.
_PIECE = 4096
# Norms are computed in float64 and must not become less than they are in float32: by its rounding, or below its range.
_UPWARDS, _LEAST = 1 + 2.0**-22, 2.0**-126


@dataclasses.dataclass(frozen=True)
class Screen:
    """Weights in 8 bits, which show of most rows that they cannot give the largest value.

    errors and sizes, float32 [rows]: of each row the Euclidean norms of what 8 bits lack of it, and
    of what they hold; no less than they are.
    """

    weight: PackedWeight
    errors: torch.Tensor
    sizes: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self.weight.nbytes + self.errors.nbytes + self.sizes.nbytes


def screen_of(weight: PackedWeight) -> Screen | None:
    """The int8 filter of weights of 16 or 32 bits; None where no op could use it, or the weights have 8 bits."""
    if not weight.panels or weight.scales is not None:
        return None
    rows, columns = weight.rows, weight.columns
    data, scales = cpu_linear.quantize(rows, columns, lambda first, last: look_up(torch.arange(first, last), weight))
    packed = PackedWeight(rows, columns, data, scales, panels=True)
    errors, sizes = torch.empty(rows), torch.empty(rows)
    for first in range(0, rows, _PIECE):
        piece = slice(first, min(rows, first + _PIECE))
        ids = torch.arange(piece.start, piece.stop)
        held = look_up(ids, packed)
        sizes[piece] = _norms(held)
        errors[piece] = _norms(look_up(ids, weight).double() - held)
    return Screen(packed, errors, sizes)


def _norms(rows: torch.Tensor) -> torch.Tensor:
    """[n, k] -> float32 [n], no less than they are"""
    norms: torch.Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms * _UPWARDS + _LEAST


def linear_argmax(
    x: torch.Tensor, weight: PackedWeight, screen: Screen | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The place and the value of the largest of each row of `linear(x, weight)`.

    With an int8 filter both are the same, to the last bit, but most weights are not read: |w x - s q| is at most
    |w - s| |x| + |s| |x - q| for the 8-bit forms s of a row of weights and q of x (Cauchy-Schwarz), so that few rows
    remain which may give the largest value.

    Args:
        x: float32 [m, columns]
        weight: from `pack`
        screen: from `screen_of` the same weights.

    Returns:
        (int64 [m], float32 [m]): the first of the largest; where there is a NaN, the first NaN.

    Raises:
        ValueError: shapes or types do not fit together.
        MemoryError: there is no room for the sums.
    """
    if x.dtype != torch.float32 or x.dim() != 2 or x.shape[1] != weight.columns:
        raise ValueError(f"x must be float32 [m, {weight.columns}], not {x.dtype} {list(x.shape)}")
    if not weight.panels:
        values, places = linear(x, weight).max(1)
        return places, values
    x = x if x.stride(1) == 1 else x.contiguous()
    if screen is None:
        return cpu_argmax.argmax(x, weight.data, weight.scales, weight.rows)
    if weight.scales is not None:
        raise ValueError("weights of 8 bits need no screen")
    if (screen.weight.rows, screen.weight.columns) != (weight.rows, weight.columns):
        raise ValueError(f"the screen is of {screen.weight.rows} x {screen.weight.columns} weights, not of these")
    scales = screen.weight.scales
    assert scales is not None  # it has 8 bits
    return cpu_argmax.screened_argmax(x, weight.data, (screen.weight.data, scales, screen.errors, screen.sizes))
