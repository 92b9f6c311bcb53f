"""What the RMS norm means."""

from __future__ import annotations

import torch


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float, plus_one: bool = False) -> torch.Tensor:
    """hidden / sqrt(mean(hidden ** 2) + eps) * (weight or 1 + weight), over the last dimension, in float32.

    (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.)
    """
    x = hidden.float()
    factor = weight.float() + 1 if plus_one else weight.float()
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * factor
