"""Swap decoder layers of a network on the CPU, by their type, for ones that run on the C++ ops.

A decoder layer of transformers is some sixty small torch ops and thirty module calls. Here it is ten calls: query, key
and value are one matrix product, gate and up are one, and what lies between the products reads its rows once. What a
layer computes and from which weights stays the same. A type that is not known stays as it is.
"""

from __future__ import annotations

from typing import Any

import torch

from pagetide_kernels.cpu import layer_ops
from pagetide_kernels.packed_linear import PackedWeight, linear, pack
from pagetide_kernels.paged_attention import paged_attention

from .attention import StepAttention
from .kinds import kind_of
from .mapped import give_back
from .network import Layer

# Layers whose attention and MLP are normed before: h += attention(norm(h)); h += mlp(norm(h)).
_NORMED_BEFORE = {
    "LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer", "GemmaDecoderLayer",
    "Phi3DecoderLayer",
}  # fmt: skip
# Layers whose attention and MLP are normed before and behind.
_NORMED_TWICE = {"Gemma2DecoderLayer", "Gemma3DecoderLayer"}
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}


class CpuLayer(torch.nn.Module):
    """A decoder layer: hidden [1, tokens, size] -> the same, changed in place."""

    def __init__(self, layer: Any, shape: Layer, kind: str) -> None:
        """Take over the weights of `layer` and free them there; `kind` is what its matrices are kept in."""
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.shape, self.layer_idx = shape, attention.layer_idx
        self.activation = _ACTIVATIONS[_activation(mlp)]
        self.qkv = _Merged(_parts(attention, "qkv_proj", ("q_proj", "k_proj", "v_proj")), kind)
        self.out = _Merged([attention.o_proj], kind)
        self.gate_up = _Merged(_parts(mlp, "gate_up_proj", ("gate_proj", "up_proj")), kind)
        self.down = _Merged([mlp.down_proj], kind)
        twice = type(layer).__name__ in _NORMED_TWICE
        self.before_attention, self.eps = _norm(layer.input_layernorm)
        behind = _norm(layer.post_attention_layernorm)[0]
        self.behind_attention = behind if twice else None
        self.before_mlp = _norm(layer.pre_feedforward_layernorm)[0] if twice else behind
        self.behind_mlp = _norm(layer.post_feedforward_layernorm)[0] if twice else None
        self.head_norms = _head_norm(attention, "q_norm"), _head_norm(attention, "k_norm")

    def forward(self, hidden_states: torch.Tensor, **others: Any) -> torch.Tensor:
        """As transformers calls it, with `position_embeddings` and `paged`; what else it hands on is not needed."""
        hidden = hidden_states[0]
        x = layer_ops.rms_norm(hidden, self.before_attention, self.eps)
        x = self._attend(x, others["position_embeddings"], others["paged"])
        layer_ops.add_norm(hidden, x, self.behind_attention, self.eps, self.before_mlp, x)
        x = self.down(layer_ops.gated(self.gate_up(x), self.activation))
        layer_ops.add_norm(hidden, x, self.behind_mlp, self.eps)
        return hidden_states

    def _attend(self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], paged: StepAttention) -> torch.Tensor:
        """[tokens, size] -> the same"""
        shape, batch = self.shape, paged.batch
        qkv, (keys, values) = self.qkv(x), paged.caches[self.layer_idx]
        cos, sin = (a.reshape(-1, a.shape[-1]) for a in angles)
        layer_ops.rotate_and_cache(
            qkv, shape.heads, (cos, sin), self.head_norms, self.eps, (keys, values), batch.slots
        )  # fmt: skip
        query = qkv[:, : shape.heads * shape.key_dim].view(-1, shape.heads, shape.key_dim)
        out = paged_attention(
            query.to(keys.dtype),
            keys,
            values,
            batch.block_tables,
            batch.context_lens,
            batch.query_starts,
            batch.max_query_len,
            batch.max_context_len,
            shape.scale,
            shape.sliding_window,
            shape.soft_cap,
        )
        return self.out(out.view(len(x), -1).float())


class _Merged:
    """Linear layers with the same input as one: [m, in] -> [m, sum of out]."""

    def __init__(self, parts: list[Any], kind: str) -> None:
        weights = [part.weight.data for part in parts]
        self.weight: PackedWeight = pack(torch.cat(weights) if len(parts) > 1 else weights[0].clone(), kind)
        biased = parts[0].bias is not None
        self.bias = torch.cat([part.bias.data.float() for part in parts]) if biased else None
        for part, weight in zip(parts, weights, strict=True):
            give_back(weight)
            part.weight.data = torch.empty(0, dtype=weight.dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)


@torch.no_grad()
def swap_layers(network: Any, layers: list[Layer], kind: str) -> int:
    """Swap what is known in `network`, one layer after the other, so that at most one layer's weights lie there twice.

    Returns:
        bytes that the matrices of the swapped layers take.
    """
    taken = 0
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if _is_known(child):
                made = CpuLayer(child, layers[child.self_attn.layer_idx], kind)
                setattr(parent, name, made)
                matrices = (made.qkv, made.out, made.gate_up, made.down)
                taken += sum(merged.weight.nbytes for merged in matrices)
    return taken


def _is_known(layer: Any) -> bool:
    if kind_of(layer) not in _NORMED_BEFORE | _NORMED_TWICE or not hasattr(layer, "self_attn"):
        return False
    attention, mlp = layer.self_attn, layer.mlp
    groups = (
        _parts(attention, "qkv_proj", ("q_proj", "k_proj", "v_proj")),
        [attention.o_proj],
        _parts(mlp, "gate_up_proj", ("gate_proj", "up_proj")),
        [mlp.down_proj],
    )
    for group in groups:
        if any(type(part) is not torch.nn.Linear for part in group) or len({p.bias is None for p in group}) > 1:
            return False
    return _activation(mlp) in _ACTIVATIONS


def _parts(module: Any, merged: str, names: tuple[str, ...]) -> list[Any]:
    """The one linear layer that the model merged itself, or those that it has instead."""
    if hasattr(module, merged):
        return [getattr(module, merged)]
    return [getattr(module, name, None) for name in names]


def _activation(mlp: Any) -> str:
    config = mlp.config
    return str(getattr(config, "hidden_activation", None) or config.hidden_act)


def _head_norm(attention: Any, name: str) -> torch.Tensor | None:
    norm = getattr(attention, name, None)
    return None if norm is None else _norm(norm)[0]


def _norm(norm: Any) -> tuple[torch.Tensor, float]:
    """(weights that multiply, eps) of an RMS norm; Gemma's are 1 more than what is stored."""
    weight = norm.weight.data.float()
    plus_one = type(norm).__name__.startswith("Gemma")
    eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
    return (weight + 1 if plus_one else weight.clone()), float(eps)
