"""What matrix products with packed weights mean."""

from __future__ import annotations

import torch

# Numbers of a row that share a scale.
GROUP = 32
_TINY = torch.finfo(torch.float32).tiny


def _groups(matrix: torch.Tensor) -> torch.Tensor:
    """[m, k] -> [m, groups, GROUP], zeros behind the end of a row"""
    return torch.nn.functional.pad(matrix, (0, -matrix.shape[1] % GROUP)).view(matrix.shape[0], -1, GROUP)


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, k] -> (whole numbers -127..127 as int8 [rows, k], float32 scales [rows, groups]); see `widened`."""
    groups = _groups(weight.float())
    most = groups.abs().amax(2)
    numbers = (groups / most.clamp_min(_TINY)[:, :, None] * 127).round()
    return numbers.view(len(weight), -1)[:, : weight.shape[1]].to(torch.int8), most / 127


def widened(numbers: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The weights that `quantize` made, float32 [rows, k]: each number times the scale of its group."""
    return (_groups(numbers.float()) * scales[:, :, None]).view(len(numbers), -1)[:, : numbers.shape[1]]


def rounded(x: torch.Tensor) -> torch.Tensor:
    """float32 [m, k], each group of a row rounded to 8 bits as the C++ op does it."""
    groups = _groups(x)
    most = groups.abs().amax(2, keepdim=True)
    numbers = (groups * (127 / most.clamp_min(_TINY))).round()
    return (numbers * (most / 127)).view(len(x), -1)[:, : x.shape[1]]


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
