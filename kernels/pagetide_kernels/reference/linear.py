"""What matrix products with packed weights mean."""

from __future__ import annotations

import torch

GROUP = 64


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, columns] -> (whole numbers -127..127 as int8, float32 scales [rows]): weight = number * scale."""
    most = weight.float().abs().amax(1)
    numbers = (weight.float() / most.clamp_min(torch.finfo(torch.float32).tiny)[:, None] * 127).round()
    return numbers.to(torch.int8), most / 127


def rounded(x: torch.Tensor) -> torch.Tensor:
    """float32 [m, k], each 64 numbers of a row rounded to 8 bits as the C++ op does it."""
    m, k = x.shape
    groups = torch.nn.functional.pad(x, (0, -k % GROUP)).view(m, -1, GROUP)
    most = groups.abs().amax(2, keepdim=True)
    numbers = (groups * (127 / most.clamp_min(torch.finfo(torch.float32).tiny))).round()
    return (numbers * (most / 127)).view(m, -1)[:, :k]


def linear(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor | None = None, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x [m, k], weight [rows, k], of whole numbers if there are scales [rows] -> [m, rows]"""
    out = x @ weight.to(x.dtype).T
    out = out if scales is None else out * scales
    return out if bias is None else out + bias


def look_up(ids: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor | None = None) -> torch.Tensor:
    """ids [n] -> rows [n, columns]"""
    rows = weight[ids].float()
    return rows if scales is None else rows * scales[ids, None]
