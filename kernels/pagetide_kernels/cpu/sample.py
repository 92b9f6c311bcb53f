"""Call the C++ drawing of tokens (`sample.cpp`)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch

from . import build
from .checks import check

_P, _INT = ctypes.c_void_p, ctypes.c_int


@functools.cache
def _function() -> Callable[..., int]:
    function = build.library().pagetide_sample
    function.argtypes = [*[_P] * 9, _INT]
    return function


def sample(
    logits: torch.Tensor,
    shapes: torch.Tensor,
    top_k: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    starts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token for each row, as `gpu.sample` draws it, and the row's largest logit.

    Args:
        logits: float32 [rows, vocabulary], rows contiguous. A row whose largest logit is not finite, or which holds a
            NaN, gets a token that means nothing.
        shapes: float64 [rows, 3]: temperature (above 0), top_p and min_p (1 and 0 are all).
        top_k: int64 [rows]; 1 is the first of the largest; 0, or as many as the vocabulary holds, is all.
        first, second: int32 [n], tables of random numbers of 31 bits.
        starts: int64 [rows, 2]; token t of row r gets `first[starts[r, 0] + t] ^ second[starts[r, 1] + t]`.

    Returns:
        (int64 [rows], float32 [rows]), the latter NaN where the row holds one.

    Raises:
        ValueError: shapes, dtypes or strides do not fit together.
        MemoryError: there is no room to sort in.
    """
    rows, vocabulary = logits.shape
    if logits.dtype != torch.float32 or logits.stride(1) != 1 or not vocabulary:
        raise ValueError(f"logits must be float32 [rows, vocabulary] with contiguous rows, not {logits.dtype}")
    check("shapes", shapes, rows, 3, dtype=torch.float64)
    check("top_k", top_k, rows, dtype=torch.int64)
    check("starts", starts, rows, 2, dtype=torch.int64)
    for table, start in ((first, starts[:, 0]), (second, starts[:, 1])):
        check("tables", table, len(table), dtype=torch.int32)
        if rows and not 0 <= int(start.min()) <= int(start.max()) <= len(table) - vocabulary:
            raise ValueError(f"starts must leave {vocabulary} numbers of tables of {len(table)}")
    places, values = torch.empty(rows, dtype=torch.int64), torch.empty(rows, dtype=torch.float32)
    sizes = (ctypes.c_int64 * 3)(rows, vocabulary, logits.stride(0))
    pointers = [t.data_ptr() for t in (shapes, top_k, first, second, starts, places, values)]
    if _function()(logits.data_ptr(), sizes, *pointers, torch.get_num_threads()):
        raise MemoryError("no room to sort logits in")
    return places, values
