"""Call the C++ ops between a layer's matrix products (`layer_ops.cpp`): float32, contiguous, on the CPU."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch

from . import build

NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_P, _I64, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_TAKES = {
    "rms_norm": [_P, _P, _P, _I64, _I64, _FLOAT, _INT],
    "add_norm": [_P, _P, _P, _P, _P, _I64, _I64, _FLOAT, _INT],
    "gated": [_P, _P, _I64, _I64, _INT, _INT],
}
_ROTATE = [_P, _P, _P, _P, _P, _P, _P, _P, _P, _FLOAT, _INT]


@functools.cache
def _function(name: str) -> Callable[..., None]:
    function = getattr(build.library(), f"pagetide_{name}")
    function.argtypes = _TAKES.get(name, _ROTATE)
    function.restype = None
    return function  # type: ignore[no-any-return]


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The norm of each row of hidden [m, n], times weight [n] (see `reference.rms_norm`; 1 is added beforehand)."""
    m, n = hidden.shape
    out = torch.empty(m, n)
    _function("rms_norm")(hidden.data_ptr(), weight.data_ptr(), out.data_ptr(), m, n, eps, torch.get_num_threads())
    return out


def add_norm(
    hidden: torch.Tensor,
    x: torch.Tensor,
    own: torch.Tensor | None,
    eps: float,
    following: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> None:
    """Add x [m, n] to hidden [m, n] in place, and write the norm of the sum.

    Args:
        hidden: changed.
        x: what is added, by its own norm first if it has one.
        own: weights [n] of x's norm, or None.
        eps: of both norms.
        following: weights [n] of the norm of the sum, or None if it is not wanted.
        out: [m, n], where the norm of the sum goes; may be x.
    """
    m, n = hidden.shape
    ends = [None if t is None else t.data_ptr() for t in (own, following, out)]
    _function("add_norm")(hidden.data_ptr(), x.data_ptr(), *ends, m, n, eps, torch.get_num_threads())


def gated(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """See `reference.gated`; activation is silu or gelu_tanh. [m, 2 n] -> [m, n]"""
    m, n = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(m, n)
    is_gelu = int(activation == "gelu_tanh")
    _function("gated")(gate_up.data_ptr(), out.data_ptr(), m, n, is_gelu, torch.get_num_threads())
    return out


def rotate_and_cache(
    qkv: torch.Tensor,
    heads: int,
    angles: tuple[torch.Tensor, torch.Tensor],
    norms: tuple[torch.Tensor | None, torch.Tensor | None],
    eps: float,
    caches: tuple[torch.Tensor, torch.Tensor],
    slots: torch.Tensor,
) -> None:
    """Turn queries and keys by their positions, and write keys and values into the paged cache.

    Args:
        qkv: [tokens, (heads + 2 kv_heads) * dim]: queries, keys, values; queries and keys are changed.
        heads: of the queries.
        angles: cos and sin, [tokens, 2 * pairs that are turned]; their second half repeats the first.
        norms: weights [dim] of the norms of queries and keys, before they are turned; or None.
        eps: of these norms.
        caches: keys and values, contiguous [blocks, block_size, kv_heads, dim] of any float type; changed.
        slots: int64 [tokens], where in the caches.
    """
    cos, sin = angles
    key_cache, value_cache = caches
    _, _, kv_heads, dim = key_cache.shape
    sizes = (_I64 * 6)(qkv.shape[0], heads, kv_heads, dim, cos.shape[1] // 2, cos.stride(0))
    ends = [None if t is None else t.data_ptr() for t in norms]
    targets = [t.data_ptr() for t in (key_cache, value_cache, slots)]
    _function(f"rotate_and_cache_{NAMES[key_cache.dtype]}")(
        qkv.data_ptr(), cos.data_ptr(), sin.data_ptr(), *ends, *targets, sizes, eps, torch.get_num_threads()
    )
