"""Call the C++ ops between a layer's matrix products (`layer_ops.cpp`): float32, contiguous, on the CPU."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch

from . import build
from .checks import check

_P, _I64, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_TAKES = {
    "rms_norm": [_P, _P, _P, _I64, _I64, _FLOAT, _INT],
    "add_norm": [_P, _P, _P, _P, _P, _I64, _I64, _FLOAT, _INT],
    "gated": [_P, _P, _I64, _I64, _INT, _INT],
}
_ROTATE = [_P, _P, _P, _P, _P, _P, _P, _P, _P, _FLOAT, _INT]


@functools.cache
def _function(name: str) -> Callable[..., int]:
    """Those of `_TAKES` return nothing; the others 0, or 1 for a slot that does not exist."""
    function = getattr(build.library(), f"pagetide_{name}")
    function.argtypes = _TAKES.get(name, _ROTATE)
    function.restype = None if name in _TAKES else _INT
    return function  # type: ignore[no-any-return]


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The norm of each row of hidden [m, n], times weight [n] (see `reference.rms_norm`; 1 is added beforehand).

    Raises:
        ValueError: shapes, dtypes or strides do not fit together.
    """
    m, n = hidden.shape
    check("hidden", hidden, m, n)
    check("weight", weight, n)
    out = torch.empty(m, n, dtype=torch.float32)
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
        out: [m, n], where the norm of the sum goes; may be x. None with `following`.

    Raises:
        ValueError: shapes, dtypes or strides do not fit together.
    """
    m, n = hidden.shape
    for name, rows in (("hidden", hidden), ("x", x), ("out", out)):
        check(name, rows, m, n)
    for name, weights in (("own", own), ("following", following)):
        check(name, weights, n)
    if following is not None and out is None:
        raise ValueError("the norm of the sum is wanted, but there is no out")
    ends = [None if t is None else t.data_ptr() for t in (own, following, out)]
    _function("add_norm")(hidden.data_ptr(), x.data_ptr(), *ends, m, n, eps, torch.get_num_threads())


def gated(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """See `reference.gated`; activation is silu or gelu_tanh. [m, 2 n] -> [m, n]

    Raises:
        ValueError: shape, dtype or strides are others, or the activation is.
    """
    m, n = gate_up.shape[0], gate_up.shape[1] // 2
    check("gate_up", gate_up, m, 2 * n)
    if activation not in ("silu", "gelu_tanh"):
        raise ValueError(f"activation must be silu or gelu_tanh, not {activation!r}")
    out = torch.empty(m, n, dtype=torch.float32)
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
    """Apply RoPE to queries and keys, and write keys and values into the paged cache.

    Args:
        qkv: [tokens, (heads + 2 kv_heads) * dim]: queries, keys, values; queries and keys are changed.
        heads: of the queries.
        angles: cos and sin, [tokens, 2 * pairs that are rotated]; their second half repeats the first.
        norms: weights [dim] of the norms of queries and keys, before they are rotated; or None.
        eps: of these norms.
        caches: keys and values, contiguous [blocks, block_size, kv_heads, dim] of one float type; changed.
        slots: int64 [tokens], where in the caches.

    Raises:
        ValueError: shapes, dtypes or strides do not fit together, or a slot does not exist.
    """
    cos, sin = angles
    key_cache, value_cache = caches
    blocks, block_size, kv_heads, dim = key_cache.shape
    tokens, rotated = qkv.shape[0], cos.shape[1] // 2
    check("qkv", qkv, tokens, (heads + 2 * kv_heads) * dim)
    for name, angle in (("cos", cos), ("sin", sin)):
        check(name, angle, tokens, 2 * rotated)
    for norm in norms:
        check("a norm of heads", norm, dim)
    _check_caches(key_cache, value_cache, slots, tokens)
    if 2 * rotated > dim:
        raise ValueError(f"heads of {dim} numbers cannot be turned by {rotated} angles")
    sizes = (_I64 * 7)(tokens, heads, kv_heads, dim, rotated, cos.stride(0), blocks * block_size)
    ends = [None if t is None else t.data_ptr() for t in norms]
    targets = [t.data_ptr() for t in (key_cache, value_cache, slots)]
    failed = _function(f"rotate_and_cache_{build.DTYPE_NAMES[key_cache.dtype]}")(
        qkv.data_ptr(), cos.data_ptr(), sin.data_ptr(), *ends, *targets, sizes, eps, torch.get_num_threads()
    )
    if failed:
        raise ValueError(f"slots must lie in 0..{blocks * block_size - 1}")


def _check_caches(keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, tokens: int) -> None:
    alike = keys.shape == values.shape and keys.dtype == values.dtype
    if not alike or not keys.is_contiguous() or not values.is_contiguous() or keys.dtype not in build.DTYPE_NAMES:
        problem = f"not {keys.dtype} {list(keys.shape)} and {values.dtype} {list(values.shape)}"
        raise ValueError(f"the caches must be contiguous and of one shape and float type, {problem}")
    if slots.dtype != torch.int64 or slots.shape != (tokens,) or not slots.is_contiguous():
        raise ValueError(f"slots must be contiguous int64 [{tokens}], not {slots.dtype} {list(slots.shape)}")
