"""Call the C++ op that runs all decoder layers of a step (`decoder_layers.cpp`)."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import weakref
from collections.abc import Callable, Sequence

import torch

from ..caches import Caches
from ..packed_linear import PackedWeight
from . import build
from .checks import check

_P, _I64, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_NO_MEMORY, _UNSOUND, _NO_SLOT = 1, 2, 3
_KINDS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.uint8: 3}


@dataclasses.dataclass(frozen=True)
class Projection:
    """x w^T + bias, with a weight that `pack` brought into panels."""

    weight: PackedWeight
    bias: torch.Tensor | None


@dataclasses.dataclass(frozen=True)
class Layer:
    """A decoder layer; all norms are float32 weights that multiply, `behind_...` and head norms may be missing.

    heads: of the queries; those of keys and values are known by the caches. first_angle: where in a row of `angles` its
    cosines begin, `pairs` of them, its sines follow. activation: silu or gelu_tanh. The rest as in `paged_attention`.
    """

    qkv: Projection
    out: Projection
    gate_up: Projection
    down: Projection
    before_attention: torch.Tensor
    behind_attention: torch.Tensor | None
    before_mlp: torch.Tensor
    behind_mlp: torch.Tensor | None
    head_norms: tuple[torch.Tensor | None, torch.Tensor | None]
    eps: float
    activation: str
    heads: int
    scale: float
    sliding_window: int | None
    soft_cap: float | None
    first_angle: int
    pairs: int


class DecoderLayers:
    """Decoder layers and the norm behind them, over one KV cache.

    Holds the memory of what lies between the ops, as much as its largest step took, until its last reference is gone.
    Two threads must not run one at once: they would share that memory.
    """

    def __init__(self, layers: Sequence[Layer], norm: torch.Tensor, eps: float, caches: Caches) -> None:
        """Prepare what does not change from step to step.

        Args:
            layers: in order.
            norm: float32 [size], the weights of the norm behind the last layer; `eps` is its own.
            caches: keys and values of each layer, contiguous [blocks, block_size, kv_heads, dim] of one float type.

        Raises:
            ValueError: shapes, dtypes or strides do not fit together.
            MemoryError: there is no room.
        """
        keys = caches[0][0]
        self._size = layers[0].qkv.weight.columns
        self._least_angles = max(layer.first_angle + 2 * layer.pairs for layer in layers)
        for layer, pair in zip(layers, caches, strict=True):
            _check_layer(layer, pair, keys, self._size)
        check("norm", norm, self._size)
        # The structures point into these.
        self._held = layers, norm, caches
        self._layers = (_Layer * len(layers))(*map(_layer, layers, caches))
        sizes = len(layers), self._size, keys.shape[1], keys.shape[0], _KINDS[keys.dtype]
        self._network = _Network(ctypes.addressof(self._layers), *sizes, norm.data_ptr(), eps)
        self._space = _make_space()
        weakref.finalize(self, _free_space, self._space)

    def run(
        self,
        hidden: torch.Tensor,
        angles: torch.Tensor,
        slots: torch.Tensor,
        block_tables: torch.Tensor,
        context_lens: torch.Tensor,
        query_starts: torch.Tensor,
        rows: torch.Tensor,
    ) -> torch.Tensor:
        """Run all layers, and write keys and values of all tokens into the caches.

        Args:
            hidden: float32 [tokens, size], contiguous; used up.
            angles: float32 [tokens, ...], contiguous: cosines and sines where the layers look for them.
            slots: int64 [tokens], where in the caches.
            block_tables, context_lens, query_starts: int32, contiguous, as in `paged_attention`.
            rows: int64 [wanted], of which tokens the result is wanted.

        Returns:
            float32 [wanted, size], the norm of the last layer's result.

        Raises:
            ValueError: shapes, dtypes or strides do not fit together; or a slot, a block or a row does not exist.
            MemoryError: there is no room for what lies between the ops.
        """
        tokens, sequences = len(hidden), len(context_lens)
        check("hidden", hidden, tokens, self._size)
        check("angles", angles, tokens, max(self._least_angles, angles.shape[-1]))
        check("slots", slots, tokens, dtype=torch.int64)
        check("rows", rows, len(rows), dtype=torch.int64)
        check("block_tables", block_tables, sequences, block_tables.shape[-1], dtype=torch.int32)
        check("context_lens", context_lens, sequences, dtype=torch.int32)
        check("query_starts", query_starts, sequences + 1, dtype=torch.int32)
        out = torch.empty(len(rows), self._size, dtype=torch.float32)
        pointers = (t.data_ptr() for t in (hidden, out, angles, slots, rows, block_tables, context_lens, query_starts))
        sizes = tokens, len(rows), angles.stride(0), sequences, block_tables.shape[1], torch.get_num_threads()
        failed = _function()(self._network, _Step(*pointers, *sizes), self._space)
        if failed == _NO_MEMORY:
            raise MemoryError("no room for what lies between the ops of a decoder layer")
        if failed == _NO_SLOT:
            raise ValueError(f"slots must lie in 0..{self._network.blocks * self._network.block_size - 1}")
        if failed == _UNSOUND:
            raise ValueError("block_tables, context_lens and query_starts name rows or blocks that do not exist")
        if failed:
            raise ValueError(f"rows must lie in 0..{tokens - 1}")
        return out


class _Weights(ctypes.Structure):
    _fields_ = (("panels", _P), ("scales", _P), ("bias", _P), ("n", _I64), ("k", _I64), ("kind", _I64))


# The structures of decoder_layers.cpp, field by field.
_NORMS = "before_attention", "behind_attention", "before_mlp", "behind_mlp", "query_norm", "key_norm"
_SIZES = "heads", "kv_heads", "dim", "first_angle", "pairs", "window", "is_gelu"


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Weights) for name in ("qkv", "out", "gate_up", "down")),
        *((name, _P) for name in (*_NORMS, "keys", "values")),
        *((name, _I64) for name in _SIZES),
        *((name, _FLOAT) for name in ("eps", "scale", "cap")),
    )


class _Network(ctypes.Structure):
    _fields_ = (
        ("layers", _P),
        *((name, _I64) for name in ("count", "size", "block_size", "blocks", "cache_kind")),
        ("norm", _P),
        ("eps", _FLOAT),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, _P) for name in ("hidden", "out", "angles", "slots", "rows", "tables", "contexts", "starts")),
        *((name, _I64) for name in ("tokens", "wanted", "angle_stride", "sequences", "table_width")),
        ("threads", ctypes.c_int),
    )


@functools.cache
def _function() -> Callable[..., int]:
    function = build.library().pagetide_decoder_layers
    function.argtypes = [ctypes.POINTER(_Network), ctypes.POINTER(_Step), _P]
    return function


def _make_space() -> int:
    make = build.library().pagetide_make_space
    make.restype = _P
    made: int | None = make()
    if made is None:
        raise MemoryError("no room for what lies between the ops of a decoder layer")
    return made


def _free_space(space: int) -> None:
    build.library().pagetide_free_space(_P(space))


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _weights(projection: Projection) -> _Weights:
    weight = projection.weight
    pointers = map(_pointer, (weight.data, weight.scales, projection.bias))
    return _Weights(*pointers, weight.rows, weight.columns, _KINDS[weight.data.dtype])


def _layer(layer: Layer, caches: tuple[torch.Tensor, torch.Tensor]) -> _Layer:
    kv_heads, dim = caches[0].shape[2:]
    norms = layer.before_attention, layer.behind_attention, layer.before_mlp, layer.behind_mlp, *layer.head_norms
    return _Layer(
        *map(_weights, (layer.qkv, layer.out, layer.gate_up, layer.down)),
        *map(_pointer, (*norms, *caches)),
        *(layer.heads, kv_heads, dim, layer.first_angle, layer.pairs),
        *(layer.sliding_window or 0, layer.activation == "gelu_tanh"),
        *(layer.eps, layer.scale, layer.soft_cap or 0.0),
    )


def _check_layer(layer: Layer, caches: tuple[torch.Tensor, torch.Tensor], first: torch.Tensor, size: int) -> None:
    """`first` are the keys of the first layer: blocks are the same in all."""
    blocks, block_size, kv_heads, dim = first.shape[0], first.shape[1], *caches[0].shape[2:]
    for name, cache in zip(("keys", "values"), caches, strict=True):
        check(name, cache, blocks, block_size, kv_heads, dim, dtype=first.dtype)
    width, inner = layer.heads * dim, layer.down.weight.columns
    _check_projection("qkv", layer.qkv, width + 2 * kv_heads * dim, size)
    _check_projection("out", layer.out, size, width)
    _check_projection("gate_up", layer.gate_up, 2 * inner, size)
    _check_projection("down", layer.down, size, inner)
    for norm in (layer.before_attention, layer.behind_attention, layer.before_mlp, layer.behind_mlp):
        check("a norm", norm, size)
    for norm in layer.head_norms:
        check("a norm of heads", norm, dim)
    if layer.heads % kv_heads or 2 * layer.pairs > dim:
        raise ValueError(
            f"{layer.heads} heads of {dim} numbers, {layer.pairs} pairs turned, do not fit {kv_heads} KV heads"
        )
    if layer.activation not in ("silu", "gelu_tanh"):
        raise ValueError(f"activation must be silu or gelu_tanh, not {layer.activation!r}")


def _check_projection(name: str, projection: Projection, rows: int, columns: int) -> None:
    weight = projection.weight
    if not weight.panels or (weight.rows, weight.columns) != (rows, columns):
        raise ValueError(f"{name} must be panels of [{rows}, {columns}], not of {[weight.rows, weight.columns]}")
    check(f"the bias of {name}", projection.bias, rows)
