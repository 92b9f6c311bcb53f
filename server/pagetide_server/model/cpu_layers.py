"""Swap decoder layers of a network on the CPU, by their type, for ones that run on the C++ ops.

A decoder layer of transformers is some sixty small torch ops and thirty module calls. Here it is ten calls: query, key
and value are one matrix product, gate and up are one, and what lies between the products reads its rows once. What a
layer computes and from which weights stays the same. A type that is not known stays as it is. Where nothing unknown
lies around the layers either (`cpu_network`), one call runs them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pagetide_kernels.cpu import decoder_layers, layer_ops
from pagetide_kernels.packed_linear import linear, pack
from pagetide_kernels.paged_attention import paged_attention

from .attention import StepAttention
from .layer_types import ACTIVATIONS, PLUS_ONE_NORMS, kind_of
from .merging import GATE_UP, QUERY_KEY_VALUE, can_merge, merge
from .network import Layer

# Layers whose attention and MLP are normed before: h += attention(norm(h)); h += mlp(norm(h)).
_NORMED_BEFORE = {
    "LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer", "GemmaDecoderLayer",
    "Phi3DecoderLayer",
}  # fmt: skip
# Layers whose attention and MLP are normed before and behind.
_NORMED_TWICE = {"Gemma2DecoderLayer", "Gemma3DecoderLayer"}
# Those that the C++ op knows.
_ACTIVATIONS = {name: op for name, op in ACTIVATIONS.items() if op != "gelu"}


class CpuLayer(torch.nn.Module):
    """A decoder layer: hidden [1, tokens, size] -> the same, changed in place."""

    def __init__(self, layer: Any, shape: Layer, kind: str) -> None:
        """Take over the weights of `layer` and free them there; `kind` is what its matrices are kept in."""
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.shape, self.layer_idx = shape, attention.layer_idx
        self.activation = _ACTIVATIONS[_activation(mlp)]
        self.qkv = _Merged(QUERY_KEY_VALUE.of(attention), kind)
        self.out = _Merged([attention.o_proj], kind)
        self.gate_up = _Merged(GATE_UP.of(mlp), kind)
        self.down = _Merged([mlp.down_proj], kind)
        twice = type(layer).__name__ in _NORMED_TWICE
        self.before_attention, self.eps = norm_of(layer.input_layernorm)
        behind = norm_of(layer.post_attention_layernorm)[0]
        self.behind_attention = behind if twice else None
        self.before_mlp = norm_of(layer.pre_feedforward_layernorm)[0] if twice else behind
        self.behind_mlp = norm_of(layer.post_feedforward_layernorm)[0] if twice else None
        self.head_norms = _head_norm(attention, "q_norm"), _head_norm(attention, "k_norm")

    def parts(self, first_angle: int, pairs: int) -> decoder_layers.Layer:
        """What the op that runs all layers at once must know of this one; arguments as there."""
        shape = self.shape
        return decoder_layers.Layer(
            qkv=self.qkv.projection,
            out=self.out.projection,
            gate_up=self.gate_up.projection,
            down=self.down.projection,
            before_attention=self.before_attention,
            behind_attention=self.behind_attention,
            before_mlp=self.before_mlp,
            behind_mlp=self.behind_mlp,
            head_norms=self.head_norms,
            eps=self.eps,
            activation=self.activation,
            heads=shape.heads,
            scale=shape.scale,
            sliding_window=shape.sliding_window,
            soft_cap=shape.soft_cap,
            first_angle=first_angle,
            pairs=pairs,
        )

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
            query,
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
        return self.out(out.view(len(x), -1))


class _Merged:
    """Linear layers with the same input as one: [m, in] -> [m, sum of out]."""

    def __init__(self, parts: list[Any], kind: str) -> None:
        weight, bias = merge(parts)
        self.projection = decoder_layers.Projection(pack(weight, kind), None if bias is None else bias.float())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.projection.weight, self.projection.bias)


@torch.no_grad()
def swap_layers(network: Any, layers: list[Layer], kind: str, swapped: Callable[[], None]) -> int:
    """Swap what is known in `network`, one layer after the other, so that at most one layer's weights lie there twice.

    `swapped` is called after each.

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
                taken += sum(merged.projection.weight.nbytes for merged in matrices)
                swapped()
    return taken


def _is_known(layer: Any) -> bool:
    if kind_of(layer) not in _NORMED_BEFORE | _NORMED_TWICE or not hasattr(layer, "self_attn"):
        return False
    attention, mlp = layer.self_attn, layer.mlp
    groups = (QUERY_KEY_VALUE.of(attention), [attention.o_proj], GATE_UP.of(mlp), [mlp.down_proj])
    return all(map(can_merge, groups)) and _activation(mlp) in _ACTIVATIONS


def _activation(mlp: Any) -> str:
    config = mlp.config
    return str(getattr(config, "hidden_activation", None) or config.hidden_act)


def _head_norm(attention: Any, name: str) -> torch.Tensor | None:
    norm = getattr(attention, name, None)
    return None if norm is None else norm_of(norm)[0]


def norm_of(norm: Any) -> tuple[torch.Tensor, float]:
    """(weights that multiply, eps) of an RMS norm; Gemma's are 1 more than what is stored."""
    weight = norm.weight.data.float()
    plus_one = type(norm).__name__ in PLUS_ONE_NORMS
    eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon
    return (weight + 1 if plus_one else weight.clone()), float(eps)
