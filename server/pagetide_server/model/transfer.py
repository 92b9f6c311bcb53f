"""Many small arrays to a device at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

# Every array begins at such a multiple of bytes, so that it can be seen as any type.
ALIGNMENT = 16


def to_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """The arrays as tensors on `device`, of the same shapes and types.

    To a GPU they go packed, in one transfer from pinned memory: that alone does not hold up the caller, who may go on
    and launch kernels. (torch keeps pinned memory until the transfer is done.) On a CPU they stay where they are.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    packed, places = pack(arrays, pinned=device.type == "cuda")
    return unpack(packed.to(device, non_blocking=True), arrays, places)


def pack(arrays: Sequence[np.ndarray], pinned: bool) -> tuple[torch.Tensor, list[int]]:
    """(uint8 [bytes] with the arrays one behind the other, where each begins)"""
    places, end = [], 0
    for array in arrays:
        places.append(end)
        end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    packed = torch.empty(end, dtype=torch.uint8, pin_memory=pinned)
    into = packed.numpy()
    for array, place in zip(arrays, places, strict=True):
        into[place : place + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    return packed, places


def unpack(packed: torch.Tensor, arrays: Sequence[np.ndarray], places: Sequence[int]) -> list[torch.Tensor]:
    """Views of `packed`, which `pack` made of the arrays, in their shapes and types."""
    found = []
    for array, place in zip(arrays, places, strict=True):
        dtype = torch.from_numpy(array).dtype
        found.append(packed[place : place + array.nbytes].view(dtype).view(array.shape))
    return found
