"""Compute the queries, keys and values of an attention layer by one matrix product, on a GPU.

transformers' attention layers keep their forward, which calls q_proj, k_proj and v_proj one after the other with the
same tensor. The first call computes the product with all three weights, the others take their columns of it.
"""

from __future__ import annotations

from typing import Any

import torch

from .layer_types import kind_of
from .merging import QUERY_KEY_VALUE, can_merge, merge


class MergedProjections(torch.nn.Module):
    """The weights of several linear layers as one, and what a layer is yet to take of the last product."""

    def __init__(self, parts: list[Any]) -> None:
        """Take over the weights of `parts` and free them there."""
        super().__init__()
        self.sizes = [part.out_features for part in parts]
        weight, bias = merge(parts)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)
        self._hidden: torch.Tensor | None = None
        self._waiting: dict[int, torch.Tensor] = {}

    def product(self, hidden: torch.Tensor, index: int) -> torch.Tensor:
        """[..., in] -> [..., out of layer `index`], columns of a larger tensor.

        The first layer leaves to the others what is theirs; behind the last one, or another input, nothing is kept.
        """
        if index == 0:
            product = torch.nn.functional.linear(hidden, self.weight, self.bias)
            self._hidden, self._waiting = hidden, dict(enumerate(product.split_with_sizes(self.sizes, dim=-1)))
        elif hidden is not self._hidden or index not in self._waiting:
            self._hidden, self._waiting = None, {}
            return self._alone(hidden, index)
        found = self._waiting.pop(index)
        if not self._waiting:
            self._hidden = None
        return found

    def _alone(self, hidden: torch.Tensor, index: int) -> torch.Tensor:
        first = sum(self.sizes[:index])
        rows = slice(first, first + self.sizes[index])
        bias = None if self.bias is None else self.bias[rows]
        return torch.nn.functional.linear(hidden, self.weight[rows], bias)


class Projection(torch.nn.Module):
    """One of the layers that were merged: hidden [..., in] -> [..., out]."""

    def __init__(self, merged: MergedProjections, index: int) -> None:
        super().__init__()
        self.merged, self.index = merged, index

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]"""
        return self.merged.product(hidden, self.index)


@torch.no_grad()
def merge_projections(network: torch.nn.Module) -> int:
    """Merge q_proj, k_proj and v_proj in the attention layers of `network`; in how many layers that was done.

    Layers that the model merges itself, quantized ones, and those of a model's own code, which may read their weights,
    stay. At most one layer's weights lie there twice.
    """
    merged = 0
    for layer in network.modules():
        if isinstance(getattr(layer, "layer_idx", None), int) and _is_known(layer):
            made = MergedProjections(QUERY_KEY_VALUE.separate(layer))
            for index, name in enumerate(QUERY_KEY_VALUE.parts):
                setattr(layer, name, Projection(made, index))
            merged += 1
    return merged


def _is_known(layer: torch.nn.Module) -> bool:
    return bool(kind_of(layer)) and can_merge(QUERY_KEY_VALUE.separate(layer))
