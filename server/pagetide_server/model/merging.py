"""Linear layers that have their input in common, as one matrix whose weights are held once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from .mapped import give_back


class Group(NamedTuple):
    """Names of such layers in a module of transformers, and of the one that models have that merge them themselves."""

    merged: str
    parts: tuple[str, ...]

    def separate(self, module: Any) -> list[Any]:
        """The layers; None stands for one that `module` does not have."""
        return [getattr(module, name, None) for name in self.parts]

    def of(self, module: Any) -> list[Any]:
        """The one layer that the model merged itself, or those that it has instead."""
        return [getattr(module, self.merged)] if hasattr(module, self.merged) else self.separate(module)


QUERY_KEY_VALUE = Group("qkv_proj", ("q_proj", "k_proj", "v_proj"))
GATE_UP = Group("gate_up_proj", ("gate_proj", "up_proj"))


def can_merge(parts: list[Any]) -> bool:
    """Whether all are ordinary matrices (quantized ones are not) of one input size, all with a bias or none."""
    if any(type(part) is not torch.nn.Linear for part in parts):
        return False
    return len({(part.in_features, part.bias is None) for part in parts}) == 1


def merge(parts: list[Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Take over the weights of `parts`, which are left without any.

    Returns:
        (weight [sum of out, in], bias [sum of out] or None), the rows of one part behind those of the one before.
    """
    weight = _taken([part.weight for part in parts])
    return weight, None if parts[0].bias is None else _taken([part.bias for part in parts])


def _taken(parameters: list[Any]) -> torch.Tensor:
    joined = torch.cat([parameter.data for parameter in parameters])
    for parameter in parameters:
        # Somebody may hold the layer itself for longer.
        give_back(parameter.data)
        parameter.data = parameter.data.new_empty(0)
    return joined
