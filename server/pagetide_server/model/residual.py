"""Add the output of attention to the residual stream and norm the sum in one launch, in layers that are known."""

from __future__ import annotations

import types
from typing import Any

import torch

from .fused import FusedNorm
from .kinds import kind_of

# Their forward is: x += attention(norm(x)); x += mlp(norm(x)).
_LAYERS = {"GemmaDecoderLayer", "LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer"}


def join_residuals(network: torch.nn.Module) -> int:
    """Change the decoder layers of a network whose norms were swapped by `fused.fuse`; how many were changed."""
    known = [m for m in network.modules() if kind_of(m) in _LAYERS and "forward" not in vars(m)]
    joined: list[Any] = [m for m in known if isinstance(getattr(m, "post_attention_layernorm", None), FusedNorm)]
    for layer in joined:
        layer.forward = types.MethodType(_forward, layer)
    return len(joined)


def _forward(layer: Any, hidden_states: torch.Tensor, **others: Any) -> torch.Tensor:
    """[1, T, size] -> [1, T, size]; `hidden_states`, which nobody reads behind the layer, is changed."""
    from pagetide_kernels.gpu.rms_norm import rms_norm

    attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **others)
    norm, size = layer.post_attention_layernorm, hidden_states.shape[-1]
    rows, residual = attended.reshape(-1, size), hidden_states.view(-1, size)
    normed = rms_norm(rows, norm.weight, norm.eps, residual=residual, plus_one=norm.plus_one)
    return hidden_states + layer.mlp(normed.view(hidden_states.shape))  # type: ignore[no-any-return]
