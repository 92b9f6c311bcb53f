"""Swap layers of a network, by their type, for ones that run on the Triton ops.

transformers builds the network and loads its weights; what is swapped here computes the same from the same weights with
fewer launches. A type that is not known stays as it is.
"""

from __future__ import annotations

from typing import Any

import torch

from .layer_types import ACTIVATIONS, PLUS_ONE_NORMS, kind_of
from .merging import GATE_UP, can_merge, merge

# RMS norms of x / rms(x) * weight.
_NORMS = {
    "LlamaRMSNorm", "MistralRMSNorm", "MixtralRMSNorm", "Olmo2RMSNorm", "Phi3RMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm",
    "Qwen2MoeRMSNorm", "Qwen3MoeRMSNorm", "GraniteRMSNorm",
}  # fmt: skip
_GATED = {
    "LlamaMLP", "MistralMLP", "Olmo2MLP", "Qwen2MLP", "Qwen3MLP", "GemmaMLP", "Gemma2MLP", "Gemma3MLP", "GraniteMLP",
    "CohereMLP", "Cohere2MLP", "StableLmMLP",
}  # fmt: skip


class FusedNorm(torch.nn.Module):
    """RMS norm in one launch, over the last dimension."""

    def __init__(self, norm: Any, plus_one: bool) -> None:
        super().__init__()
        self.weight, self.plus_one = norm.weight, plus_one
        self.eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., size] -> [..., size]"""
        from pagetide_kernels.gpu.rms_norm import rms_norm

        # Heads [1, T, heads, size] that are columns of a merged product are read where they lie.
        rows = hidden.flatten(0, 1) if hidden.dim() == 4 else hidden.reshape(-1, hidden.shape[-1])
        return rms_norm(rows, self.weight, self.eps, plus_one=self.plus_one).view(hidden.shape)


class FusedGatedMLP(torch.nn.Module):
    """down(activation(gate(x)) * up(x)) with gate and up as one matrix product."""

    def __init__(self, mlp: Any, activation: str) -> None:
        """Take over the weights of `mlp` and free them there."""
        super().__init__()
        self.activation, self.down_proj = activation, mlp.down_proj
        weight, bias = merge(GATE_UP.separate(mlp))
        self.gate_up = torch.nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., size] -> [..., size]"""
        from pagetide_kernels.gpu.gated import gated

        gate_up = torch.nn.functional.linear(hidden, self.gate_up, self.bias)
        rows = gated(gate_up.view(-1, gate_up.shape[-1]), self.activation)
        return self.down_proj(rows.view(*hidden.shape[:-1], -1))  # type: ignore[no-any-return]


@torch.no_grad()
def fuse(network: torch.nn.Module) -> list[str]:
    """Swap what is known in `network`, one layer after the other, so that at most one layer's weights lie there twice.

    Returns:
        the types that were swapped, sorted.
    """
    swapped = set()
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            made = _fused(child)
            if made is not None:
                swapped.add(type(child).__name__)
                setattr(parent, name, made)
    return sorted(swapped)


def _fused(module: Any) -> torch.nn.Module | None:
    kind = kind_of(module)
    if kind in _NORMS or kind in PLUS_ONE_NORMS:
        return FusedNorm(module, kind in PLUS_ONE_NORMS)
    if kind not in _GATED or not can_merge(GATE_UP.separate(module)):
        return None
    activation = ACTIVATIONS.get(getattr(module.config, "hidden_activation", None) or module.config.hidden_act)
    return FusedGatedMLP(module, activation) if activation else None
