"""Call the C++ matrix products (`linear.cpp`, `linear_int8.cpp`)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch

from . import build

_P, _I64, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
# What the functions take, by the beginning of their names.
_TAKES = {
    "pack": [_P, _I64, _I64, _P, _INT],
    "quantize": [_P, _I64, _I64, _P, _P, _INT],
    "linear": [_P, _P, _P, _P, _P, _INT],
    "linear_int8": [_P, _P, _P, _P, _P, _P, _INT],
    "look_up": [_P, _I64, _I64, _P, _I64, _P, _INT],
    "look_up_int8": [_P, _P, _I64, _I64, _P, _I64, _P, _INT],
}
# Panels that are quantized at a time.
_PIECE_PANELS = 256


@functools.cache
def _function(operation: str, kind: str) -> Callable[..., int]:
    function = getattr(build.library(), f"pagetide_{operation}_{kind}")
    function.argtypes = _TAKES.get(f"{operation}_{kind}") or _TAKES[operation]
    return function  # type: ignore[no-any-return]


@functools.cache
def panel_rows() -> int:
    """Rows of weights that lie in one panel."""
    return int(build.library().pagetide_panel_rows())


def _of_columns(name: str, columns: int) -> int:
    function = getattr(build.library(), f"pagetide_{name}")
    function.argtypes, function.restype = [_I64], _I64
    return int(function(columns))


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Panels of contiguous `weight` [rows, columns] in its own type; where they fit they take its memory, not more."""
    rows, columns = weight.shape
    panels = -(-rows // panel_rows()) * panel_rows() * columns
    packed = weight if panels == weight.numel() else torch.empty(panels, dtype=weight.dtype)
    failed = _function("pack", build.DTYPE_NAMES[weight.dtype])(
        weight.data_ptr(), rows, columns, packed.data_ptr(), torch.get_num_threads()
    )
    if failed:
        raise MemoryError("no room to pack weights")
    return packed.view(-1)


def quantize(
    rows: int,
    columns: int,
    piece_of: Callable[[int, int], torch.Tensor],
    release: Callable[[torch.Tensor], object] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(panels of 8 bits, scales) of weights [rows, columns].

    `piece_of(first, last)` gives some rows, contiguous; `release` is given what was read.
    """
    padded = -(-rows // panel_rows()) * panel_rows()
    width, groups = (_of_columns(name, columns) for name in ("padded", "groups"))
    packed, scales = torch.empty(padded * width, dtype=torch.uint8), torch.empty(padded * groups, dtype=torch.float32)
    step = panel_rows() * _PIECE_PANELS
    for first in range(0, rows, step):
        piece = piece_of(first, min(rows, first + step))
        targets = packed[first * width :].data_ptr(), scales[first * groups :].data_ptr()
        function = _function("quantize", build.DTYPE_NAMES[piece.dtype])
        function(piece.data_ptr(), len(piece), columns, *targets, torch.get_num_threads())
        if release is not None:
            release(piece)
    return packed, scales


def linear(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor | None, rows: int, bias: torch.Tensor | None
) -> torch.Tensor:
    """x [m, k] float32 with contiguous rows, `weight` from `pack` or `quantize` -> [m, rows]"""
    m, k = x.shape
    out = torch.empty(m, rows, dtype=torch.float32)
    sizes = (_I64 * 5)(m, rows, k, x.stride(0), rows)
    ends = (bias.data_ptr() if bias is not None else None, out.data_ptr(), sizes, torch.get_num_threads())
    if scales is None:
        failed = _function("linear", build.DTYPE_NAMES[weight.dtype])(x.data_ptr(), weight.data_ptr(), *ends)
    else:
        failed = _function("linear", "int8")(x.data_ptr(), weight.data_ptr(), scales.data_ptr(), *ends)
    if failed:
        raise MemoryError("no room for the sums of a matrix product")
    return out


def look_up(
    ids: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor | None, rows: int, columns: int
) -> torch.Tensor:
    """Rows `ids` (int64 [n], contiguous) of packed weights, float32 [n, columns].

    Raises:
        IndexError: there is no such row.
    """
    out = torch.empty(len(ids), columns, dtype=torch.float32)
    ends = (rows, columns, ids.data_ptr(), len(ids), out.data_ptr(), torch.get_num_threads())
    if scales is None:
        failed = _function("look_up", build.DTYPE_NAMES[weight.dtype])(weight.data_ptr(), *ends)
    else:
        failed = _function("look_up", "int8")(weight.data_ptr(), scales.data_ptr(), *ends)
    if failed:
        raise IndexError(f"ids must lie in 0..{rows - 1}")
    return out
