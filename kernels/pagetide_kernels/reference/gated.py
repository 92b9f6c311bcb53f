"""What gated activations mean."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def gated(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """activation(first half) * second half of the last dimension, in float32 (Shazeer, "GLU Variants", 2020)."""
    gate, up = gate_up.float().chunk(2, -1)
    if activation == "silu":
        return F.silu(gate) * up
    return F.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none") * up
