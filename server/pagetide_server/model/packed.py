"""Bring a network's matrices into the form that the CPU ops read fastest, layer by layer.

transformers builds the network and loads its weights. Here its linear layers become `PackedLinear`: they compute in
float32 from weights of 32, 16 or 8 bits, so that a row's result does not depend on other requests in the batch. A
linear layer of another type (quantized by the model's own files, or a router that is no plain layer) stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from pagetide_kernels.dispatch import choose
from pagetide_kernels.packed_linear import PackedWeight, linear, look_up, pack

from .cpu_layers import swap_layers
from .layer_types import kind_of
from .mapped import give_back
from .network import Layer


class PackedLinear(torch.nn.Module):
    """A linear layer on packed weights: hidden [..., in] -> [..., out] of the same type, computed in float32."""

    def __init__(self, weight: PackedWeight, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.packed = weight
        self.in_features, self.out_features = weight.columns, weight.rows
        self.bias = None if bias is None else torch.nn.Parameter(bias.float(), requires_grad=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]"""
        return linear(hidden.float(), self.packed, self.bias).to(hidden.dtype)


class PackedEmbedding(torch.nn.Module):
    """An embedding that reads the packed weights of the logits' matrix: ids [...] -> [..., size]."""

    like: torch.Tensor  # Its type is that of the network's other weights, and changes with theirs.

    def __init__(self, weight: PackedWeight, scale: torch.Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.packed = weight
        self.scale = scale
        self.register_buffer("like", torch.empty(0, dtype=dtype), persistent=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """ids [...] -> [..., size]"""
        rows = look_up(input_ids, self.packed)
        return (rows if self.scale is None else rows * self.scale).to(self.like.dtype)


@torch.no_grad()
def pack_network(
    network: Any, layers: list[Layer], kind: str, float_activations: bool, progress: Callable[[float], None]
) -> int:
    """Swap the linear layers of `network`, which lies on the CPU, one after the other; their own weights are freed.

    Where the C++ ops run, whole decoder layers are swapped if their type is known.

    Args:
        network: changed in place.
        layers: its attention layers.
        kind: see `pagetide_kernels.packed_linear.pack`.
        float_activations: what is not swapped becomes float32 whatever memory it takes; else only where swapped layers
            need it, or no matrix is left.
        progress: called with the part of the matrices' numbers that is packed, after each layer.

    Returns:
        bytes that the packed weights take.
    """
    total = _numbers(network)

    def tell() -> None:
        progress(1 - _numbers(network) / total)

    taken = _pack_tied(network, kind) or 0
    swapped = swap_layers(network, layers, kind, tell) if choose(torch.device("cpu")).name == "cpp" else 0
    taken += swapped
    _untie(network)
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear:
                made = PackedLinear(packed(child.weight, kind), child.bias)
                setattr(parent, name, made)
                taken += made.packed.nbytes
                tell()
    if float_activations or swapped or _is_all_packed(network):
        network.float()
    for weight in network.parameters():
        # Whatever is still the mapped file: see `own_weights`.
        weight.data = weight.data.clone()
    return taken


def _numbers(network: Any) -> int:
    """Numbers in the matrices that are not packed."""
    return sum(weight.numel() for weight in network.parameters() if weight.dim() > 1)


def packed(weight: torch.Tensor, kind: str) -> PackedWeight:
    """The packed form of `weight`, whose own memory is given up."""
    source = weight.data
    made = pack(source.clone() if kind == "own" else source, kind, give_back)
    give_back(source)
    weight.data = torch.empty(0, dtype=source.dtype)
    return made


def _is_all_packed(network: Any) -> bool:
    """Whether no matrix is left but an embedding."""
    embedding = getattr(network.get_input_embeddings(), "weight", None)
    return all(p is embedding for p in network.parameters() if p.dim() > 1)


def _pack_tied(network: Any, kind: str) -> int | None:
    """Swap the logits' matrix and the embedding where both are one; bytes taken, or None where they are not."""
    head, embedding = network.get_output_embeddings(), network.get_input_embeddings()
    if type(head) is not torch.nn.Linear or head.weight is not embedding.weight:
        return None
    if not _is_plain_embedding(embedding):
        return None
    weight, dtype = packed(head.weight, kind), head.weight.dtype
    network.set_output_embeddings(PackedLinear(weight, head.bias))
    network.set_input_embeddings(PackedEmbedding(weight, getattr(embedding, "embed_scale", None), dtype))
    return weight.nbytes


def _untie(network: Any) -> None:
    """Give linear layers whose weights another layer needs, such as an embedding of another type, some of their own."""
    held = Counter(id(weight) for module in network.modules() for weight in module.parameters(recurse=False))
    for module in network.modules():
        if type(module) is torch.nn.Linear and held[id(module.weight)] > 1:
            module.weight = torch.nn.Parameter(module.weight.detach().clone(), requires_grad=False)


def _is_plain_embedding(embedding: Any) -> bool:
    """Whether it looks rows up and at most multiplies them by a scale that we know how to find."""
    scaled = kind_of(embedding).endswith("TextScaledWordEmbedding") and hasattr(embedding, "embed_scale")
    return scaled or type(embedding) is torch.nn.Embedding
