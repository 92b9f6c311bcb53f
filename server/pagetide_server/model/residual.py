"""Add what attention and gated layer put out to the residual stream, and norm the sum, in one launch each.

What a decoder layer's gated part puts out is added by the norm that reads it next: that of the following layer, or the
last one of the network. Until then the two are passed on together, the sum so far as an attribute of the other. Only in
layers and networks that are known, where nobody else reads between them.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from .fused import FusedNorm
from .layer_types import kind_of

# Their forward is: x += attention(norm(x)); x += mlp(norm(x)).
_LAYERS = {"GemmaDecoderLayer", "LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer"}
# Theirs is: for each of `layers`: x = layer(x); x = norm(x).
_NETWORKS = {"GemmaModel", "LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model"}

# The attribute of what is to be added yet to the residual stream: that stream.
_STREAM = "pagetide_stream"


def join_residuals(network: torch.nn.Module) -> tuple[int, int]:
    """Change the decoder layers of a network whose norms were swapped by `fused.fuse`.

    Returns:
        layers whose attention's output is added by a norm, and of these those whose gated layer's output is, too.
    """
    known = [m for m in network.modules() if kind_of(m) in _LAYERS and "forward" not in vars(m)]
    joined: list[Any] = [m for m in known if isinstance(getattr(m, "post_attention_layernorm", None), FusedNorm)]
    for layer in joined:
        layer.forward = types.MethodType(_forward, layer)
        layer.passes_on = False
    passing = 0
    for whole in (m for m in network.modules() if kind_of(m) in _NETWORKS):
        passing += _pass_on(whole, set(joined))
    return len(joined), passing


def _pass_on(whole: Any, joined: set[Any]) -> int:
    """Let each layer leave its last addition to the next norm, if all norms between are ours; how many layers do."""
    layers = list(whole.layers)
    norms = [*(layer.input_layernorm for layer in layers), whole.norm]
    if not joined.issuperset(layers) or any(type(norm) is not FusedNorm for norm in norms):
        return 0
    for layer in layers:
        layer.passes_on = True
    whole.norm.forward = types.MethodType(lambda norm, hidden: _normed(norm, hidden)[0], whole.norm)
    return len(layers)


def _forward(layer: Any, hidden_states: torch.Tensor, **others: Any) -> torch.Tensor:
    """[1, T, size] -> [1, T, size]; `hidden_states`, which nobody reads behind the layer, is changed."""
    normed, stream = _normed(layer.input_layernorm, hidden_states)
    attended, _ = layer.self_attn(hidden_states=normed, **others)
    made: torch.Tensor = layer.mlp(_add_and_norm(layer.post_attention_layernorm, attended, stream))
    if not layer.passes_on:
        return stream + made
    setattr(made, _STREAM, stream)
    return made


def _normed(norm: FusedNorm, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(the norm of the residual stream, the stream), `hidden` having been added if that was left to do."""
    stream: torch.Tensor | None = getattr(hidden, _STREAM, None)
    if stream is None:
        return FusedNorm.forward(norm, hidden), hidden
    return _add_and_norm(norm, hidden, stream), stream


def _add_and_norm(norm: FusedNorm, new: torch.Tensor, stream: torch.Tensor) -> torch.Tensor:
    """The norm of `stream` [1, T, size], to which `new` is added in place."""
    from pagetide_kernels.gpu.rms_norm import rms_norm

    rows, residual = new.reshape(-1, new.shape[-1]), stream.view(-1, stream.shape[-1])
    return rms_norm(rows, norm.weight, norm.eps, residual=residual, plus_one=norm.plus_one).view(stream.shape)
