"""What the C++ ops cannot find out by themselves: they get pointers."""

from __future__ import annotations

import torch


def check(name: str, found: torch.Tensor | None, *shape: int, dtype: torch.dtype = torch.float32) -> None:
    """Refuse a tensor, if there is one, that is not contiguous, or of another shape or type.

    Raises:
        ValueError: says what `name` must be, and what it is.
    """
    if found is not None and (found.dtype != dtype or found.shape != shape or not found.is_contiguous()):
        problem = f"not {found.dtype} {list(found.shape)} of strides {list(found.stride())}"
        raise ValueError(f"{name} must be contiguous {dtype} {list(shape)}, {problem}")
