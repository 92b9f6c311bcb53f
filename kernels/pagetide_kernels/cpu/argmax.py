"""Call the C++ search for the largest value of each row of a matrix product (`argmax.cpp`)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence

import torch

from . import build

_P, _INT = ctypes.c_void_p, ctypes.c_int
# How many matrices and vectors of weights each takes, by the beginning of its name.
_WEIGHTS = {"argmax": 1, "argmax_int8": 2, "screened_argmax": 5}


@functools.cache
def _function(operation: str, kind: str) -> Callable[..., int]:
    function = getattr(build.library(), f"pagetide_{operation}_{kind}")
    weights = _WEIGHTS.get(f"{operation}_{kind}") or _WEIGHTS[operation]
    function.argtypes = [_P, *[_P] * weights, _P, _P, _P, _INT]
    return function  # type: ignore[no-any-return]


def argmax(x: torch.Tensor, weights: Sequence[torch.Tensor], rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(places int64 [m], values float32 [m]) of the largest of each row of x w^T.

    Args:
        x: float32 [m, k] with contiguous rows.
        weights: panels; or panels of 8 bits and scales; or panels, and a screen's panels, scales, errors and sizes.
        rows: of the weights.

    Raises:
        MemoryError: there is no room for the sums.
    """
    m, k = x.shape
    places, values = torch.empty(m, dtype=torch.int64), torch.empty(m)
    sizes = (ctypes.c_int64 * 4)(m, rows, k, x.stride(0))
    operation = "screened_argmax" if len(weights) == _WEIGHTS["screened_argmax"] else "argmax"
    kind = "int8" if weights[0].dtype == torch.uint8 else build.DTYPE_NAMES[weights[0].dtype]
    pointers = [t.data_ptr() for t in (x, *weights, places, values)]
    if _function(operation, kind)(*pointers, sizes, torch.get_num_threads()):
        raise MemoryError("no room for the sums of a matrix product")
    return places, values
