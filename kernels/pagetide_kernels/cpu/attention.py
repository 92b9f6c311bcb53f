"""Call the C++ attention (`paged_attention.cpp`)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch

from . import build

_POINTERS = [ctypes.c_void_p] * 8
_OUT_OF_MEMORY, _UNSOUND = 1, 2


def prepare() -> None:
    """Build and load the op, once a process; takes seconds where it was not built before.

    Raises:
        build.BuildError: it is not available on this machine.
    """
    for dtype in build.DTYPE_NAMES:
        _function(dtype)


@functools.cache
def _function(dtype: torch.dtype) -> Callable[..., int]:
    function = getattr(build.library(), f"pagetide_attention_{build.DTYPE_NAMES[dtype]}")
    function.argtypes = [*_POINTERS, ctypes.c_float, ctypes.c_float, ctypes.c_int]
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


def attend(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_starts: torch.Tensor,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
) -> torch.Tensor:
    """Arguments, checked before, and result as in `paged_attention`; the caches are float32, float16 or bfloat16.

    The op reads and writes float32; a query of 16 bits is widened, and its result rounded, here.

    Raises:
        ValueError: tables, contexts and starts name rows or blocks that do not exist.
        MemoryError: there is no room for the sums.
    """
    rows = query.float()
    if rows.stride(2) != 1:
        rows = rows.contiguous()
    tables = [t.contiguous() for t in (block_tables, context_lens, query_starts)]
    out = torch.empty(*query.shape[:2], value_cache.shape[3], dtype=torch.float32)
    blocks, block_size, kv_heads, key_dim = key_cache.shape
    sizes = (ctypes.c_int64 * 12)(
        len(context_lens),
        block_tables.shape[1],
        query.shape[1],
        kv_heads,
        key_dim,
        value_cache.shape[3],
        block_size,
        rows.stride(0),
        rows.stride(1),
        sliding_window or 0,
        query.shape[0],
        blocks,
    )
    pointers = [t.data_ptr() for t in (rows, key_cache, value_cache, out, *tables)]
    failed = _function(key_cache.dtype)(*pointers, sizes, scale, soft_cap or 0.0, torch.get_num_threads())
    if failed == _UNSOUND:
        raise ValueError("block_tables, context_lens and query_starts name rows or blocks that do not exist")
    if failed == _OUT_OF_MEMORY:
        raise MemoryError("no room for the sums of paged attention")
    return out.to(query.dtype)
