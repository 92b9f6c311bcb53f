"""Which implementation of the ops runs on a device, and why."""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class Choice:
    """An implementation (`torch`) and one line that says why it was taken."""

    name: str
    reason: str


def choose(device: torch.device) -> Choice:
    """The implementation of all ops for tensors on `device`.

    Raises:
        ValueError: nothing here runs on such a device.
    """
    if device.type == "cpu":
        return Choice("torch", "torch's own kernels are the fastest thing here for a CPU")
    if device.type == "cuda":
        return Choice("torch", "no Triton kernel is built yet; torch ops are correct but not fast on a GPU")
    raise ValueError(f"no attention implementation for a device of type {device.type!r}; use cpu or cuda")
