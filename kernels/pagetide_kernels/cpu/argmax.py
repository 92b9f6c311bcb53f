"""Call the C++ search for the largest value of each row of a matrix product (`argmax.cpp`)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence

import torch

from . import build

_P, _INT = ctypes.c_void_p, ctypes.c_int
Largest = tuple[torch.Tensor, torch.Tensor]


@functools.cache
def _function(name: str, weights: int) -> Callable[..., int]:
    """Takes x, so many tensors of weights, places, values, sizes, threads; returns 0, or 1 where memory ran out."""
    function = getattr(build.library(), f"pagetide_{name}")
    function.argtypes = [_P, *[_P] * weights, _P, _P, _P, _INT]
    return function  # type: ignore[no-any-return]


def argmax(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor | None, rows: int) -> Largest:
    """(places int64 [m], values float32 [m]) of the largest of each row of x w^T.

    Args:
        x: float32 [m, k] with contiguous rows.
        weight: panels.
        scales: of panels of 8 bits.
        rows: of the weights.

    Raises:
        MemoryError: there is no room for the sums.
    """
    if scales is not None:
        return _call("argmax_int8", x, (weight, scales), rows)
    return _call(f"argmax_{build.DTYPE_NAMES[weight.dtype]}", x, (weight,), rows)


def screened_argmax(x: torch.Tensor, weight: torch.Tensor, screen: tuple[torch.Tensor, ...]) -> Largest:
    """As `argmax`, of panels of 16 or 32 bits. screen: panels of 8 bits, their scales, errors and sizes [rows]."""
    return _call(f"screened_argmax_{build.DTYPE_NAMES[weight.dtype]}", x, (weight, *screen), len(screen[-1]))


def _call(name: str, x: torch.Tensor, weights: Sequence[torch.Tensor], rows: int) -> Largest:
    m, k = x.shape
    places, values = torch.empty(m, dtype=torch.int64), torch.empty(m, dtype=torch.float32)
    sizes = (ctypes.c_int64 * 4)(m, rows, k, x.stride(0))
    pointers = [t.data_ptr() for t in (x, *weights, places, values)]
    if _function(name, len(weights))(*pointers, sizes, torch.get_num_threads()):
        raise MemoryError("no room for the sums of a matrix product")
    return places, values
