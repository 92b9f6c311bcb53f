"""Apply RoPE to queries and keys, and write keys and values into the paged cache, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .devices import on_its_device

# Heads of one program: enough that a thread reads 16 bytes at once.
TILE = 8


@on_its_device
def rotate_and_cache(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    interleaved: bool = False,
) -> None:
    """Rotate `query` in place; store each token's rotated key and its value at `slots[t]`.

    The first `2 * rotated` numbers of a head are rotated in pairs: (i, i + rotated), or (2 i, 2 i + 1) where
    `interleaved`; the others stay. Keys themselves are left as they are: attention reads the cache.

    Args:
        query: [tokens, heads, head_dim]; changed.
        key: [tokens, kv_heads, head_dim]. value: [tokens, kv_heads, value_dim].
        cos, sin: [tokens, rotated], of each pair's angle.
        key_cache, value_cache: [blocks, block_size, kv_heads, ...], contiguous; changed.
        slots: int64 [tokens]; a token whose slot is negative is not stored (padding of a captured graph).

    Raises:
        ValueError: shapes, dtypes or strides do not fit together.
    """
    _check(query, key, value, key_cache, value_cache)
    _check_angles(key, cos, sin, slots)
    tokens, heads, head_dim = query.shape
    if not tokens:
        return
    kv_heads, value_dim, rotated = key.shape[1], value.shape[2], cos.shape[1]
    rotated_padded = triton.next_power_of_2(rotated)
    _rotate_and_cache_kernel[(tokens, triton.cdiv(heads, TILE) + triton.cdiv(kv_heads, TILE))](
        query,
        key,
        value,
        cos,
        sin,
        key_cache,
        value_cache,
        slots,
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        cos.stride(0),
        sin.stride(0),
        HEADS=heads,
        KV_HEADS=kv_heads,
        KEY_DIM=head_dim,
        VALUE_DIM=value_dim,
        ROTATED=rotated,
        ROTATED_PADDED=rotated_padded,
        KEY_PADDED=triton.next_power_of_2(head_dim),
        VALUE_PADDED=triton.next_power_of_2(value_dim),
        TILE=TILE,
        INTERLEAVED=interleaved,
        num_warps=warps_for(rotated_padded),
    )


def warps_for(rotated_padded: int) -> int:
    """Such that a thread rotates at most 16 pairs."""
    return max(1, min(8, TILE * rotated_padded // 512))


def _check(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor
) -> None:
    if query.dim() != 3 or key.dim() != 3 or query.shape[::2] != key.shape[::2]:
        raise ValueError(f"query {tuple(query.shape)} and key {tuple(key.shape)} must be [tokens, heads, head_dim]")
    if value.dim() != 3 or value.shape[:2] != key.shape[:2]:
        raise ValueError(f"value must be [tokens, kv_heads, value_dim] like key, not {tuple(value.shape)}")
    for name, new, cache in (("key", key, key_cache), ("value", value, value_cache)):
        if cache.dim() != 4 or not cache.is_contiguous() or cache.shape[2:] != new.shape[1:]:
            expected = f"contiguous [blocks, block_size, {new.shape[1]}, {new.shape[2]}]"
            raise ValueError(f"{name}_cache must be {expected}, not {tuple(cache.shape)}")
        if cache.dtype != new.dtype:
            raise ValueError(f"{name} is {new.dtype}, its cache {cache.dtype}")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.stride(2) != 1:
            raise ValueError(f"the last dimension of {name} must be contiguous; its strides are {tensor.stride()}")
        if tensor.device != key_cache.device:
            raise ValueError(f"{name} lies on {tensor.device}, the caches on {key_cache.device}")


def _check_angles(key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, slots: torch.Tensor) -> None:
    tokens, _, head_dim = key.shape
    for name, angles in (("cos", cos), ("sin", sin)):
        if angles.dim() != 2 or angles.shape[0] != tokens or not 1 <= angles.shape[1] <= head_dim // 2:
            limits = f"[{tokens}, 1..{head_dim // 2}]"
            raise ValueError(f"{name} must be {limits}, not {tuple(angles.shape)}")
        if angles.stride(1) != 1:
            raise ValueError(f"the rows of {name} must be contiguous; its strides are {angles.stride()}")
    if cos.shape != sin.shape:
        raise ValueError(f"cos {tuple(cos.shape)} and sin {tuple(sin.shape)} differ")
    if slots.dtype != torch.int64 or slots.shape != (tokens,):
        raise ValueError(f"slots must be int64 [{tokens}], not {slots.dtype} {tuple(slots.shape)}")


@triton.jit
def _rotate_and_cache_kernel(
    query,
    key,
    value,
    cos,
    sin,
    key_cache,
    value_cache,
    slots,
    query_stride,
    query_head_stride,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    cos_stride,
    sin_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    ROTATED: tl.constexpr,
    ROTATED_PADDED: tl.constexpr,
    KEY_PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    TILE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """TILE heads of one token: those of the query first, then those of key and value."""
    query_tiles: tl.constexpr = (HEADS + TILE - 1) // TILE
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    pairs = tl.arange(0, ROTATED_PADDED)
    c = tl.load(cos + token * cos_stride + pairs, mask=pairs < ROTATED, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + token * sin_stride + pairs, mask=pairs < ROTATED, other=0.0).to(tl.float32)[None, :]
    if INTERLEAVED:
        left, right = 2 * pairs[None, :], 2 * pairs[None, :] + 1
    else:
        left, right = pairs[None, :], pairs[None, :] + ROTATED
    if tile < query_tiles:
        head = tile * TILE + tl.arange(0, TILE)[:, None]
        is_pair = (head < HEADS) & (pairs < ROTATED)[None, :]
        place = query + token * query_stride + head.to(tl.int64) * query_head_stride
        a = tl.load(place + left, mask=is_pair, other=0.0).to(tl.float32)
        b = tl.load(place + right, mask=is_pair, other=0.0).to(tl.float32)
        tl.store(place + left, (a * c - b * s).to(query.dtype.element_ty), mask=is_pair)
        tl.store(place + right, (b * c + a * s).to(query.dtype.element_ty), mask=is_pair)
    else:
        kv_head = ((tile - query_tiles) * TILE + tl.arange(0, TILE)[:, None]).to(tl.int64)
        slot = tl.load(slots + token)
        # (The interpreter cannot join a condition of one value with one of many.)
        is_head = (kv_head < KV_HEADS) & (slot + tl.zeros([TILE, 1], tl.int64) >= 0)
        is_pair = is_head & (pairs < ROTATED)[None, :]
        source = key + token * key_stride + kv_head * key_head_stride
        target = key_cache + (slot * KV_HEADS + kv_head) * KEY_DIM
        a = tl.load(source + left, mask=is_pair, other=0.0).to(tl.float32)
        b = tl.load(source + right, mask=is_pair, other=0.0).to(tl.float32)
        tl.store(target + left, (a * c - b * s).to(key.dtype.element_ty), mask=is_pair)
        tl.store(target + right, (b * c + a * s).to(key.dtype.element_ty), mask=is_pair)
        if KEY_DIM > 2 * ROTATED:
            rest = tl.arange(0, KEY_PADDED)[None, :]
            is_rest = is_head & (rest >= 2 * ROTATED) & (rest < KEY_DIM)
            tl.store(target + rest, tl.load(source + rest, mask=is_rest, other=0.0), mask=is_rest)
        dims = tl.arange(0, VALUE_PADDED)[None, :]
        is_value = is_head & (dims < VALUE_DIM)
        v = tl.load(value + token * value_stride + kv_head * value_head_stride + dims, mask=is_value)
        tl.store(value_cache + (slot * KV_HEADS + kv_head) * VALUE_DIM + dims, v, mask=is_value)
