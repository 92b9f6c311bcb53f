"""What matrix products with packed weights mean."""

from __future__ import annotations

import torch

# Numbers of a row that share a scale.
GROUP = 32
# A group of inputs that are all smaller counts as zeros, since 127 / x must not overflow.
LEAST = 1e-30
_TINY = torch.finfo(torch.float32).tiny


def _groups(matrix: torch.Tensor) -> torch.Tensor:
    """[m, k] -> [m, groups, GROUP], zeros behind the end of a row"""
    rows, columns = matrix.shape
    return torch.nn.functional.pad(matrix, (0, -columns % GROUP)).view(rows, -(-columns // GROUP), GROUP)


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, k] -> (whole numbers -127..127 as int8 [rows, k], float32 scales [rows, groups]); see `widened`.

    A group that holds NaN or infinity becomes NaN as a whole.
    """
    groups = _groups(weight.float())
    most = groups.abs().amax(2)
    numbers = (groups / most.clamp_min(_TINY)[:, :, None] * 127).round()
    return numbers.flatten(1)[:, : weight.shape[1]].to(torch.int8), most / 127


def widened(numbers: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The weights that `quantize` made, float32 [rows, k]: each number times the scale of its group."""
    return (_groups(numbers.float()) * scales[:, :, None]).flatten(1)[:, : numbers.shape[1]]


def rounded(x: torch.Tensor) -> torch.Tensor:
    """float32 [m, k], each group of a row rounded to 8 bits as the C++ op does it."""
    groups = _groups(x)
    most = groups.abs().amax(2, keepdim=True)
    numbers = (groups * torch.where(most < LEAST, 0.0, 127 / most)).round()
    return (numbers * (most / 127)).flatten(1)[:, : x.shape[1]]


def linear(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor | None = None, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x [m, k], weight [rows, k], of whole numbers if there are scales -> [m, rows]"""
    weight = weight if scales is None else widened(weight, scales)
    out = x @ weight.to(x.dtype).T
    return out if bias is None else out + bias


def look_up(ids: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor | None = None) -> torch.Tensor:
    """ids [n] -> rows float32 [n, k]"""
    return weight[ids].float() if scales is None else widened(weight[ids], scales[ids])
