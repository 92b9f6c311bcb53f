"""Write new keys and values into the paged KV cache."""

from __future__ import annotations

import torch


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Store token t's key and value at slot `slots[t]` (block * block_size + place in the block).

    Args:
        key, value: [tokens, kv_heads, head_dim]
        key_cache, value_cache: [blocks, block_size, kv_heads, head_dim], contiguous; changed in place.
        slots: int64 [tokens]; no slot twice.

    Raises:
        ValueError: shapes, dtypes or devices do not fit together.
    """
    _check(key, key_cache, slots, "key")
    _check(value, value_cache, slots, "value")
    _flat(key_cache).index_copy_(0, slots, key)
    _flat(value_cache).index_copy_(0, slots, value)


def _flat(cache: torch.Tensor) -> torch.Tensor:
    return cache.view(-1, *cache.shape[2:])


def _check(new: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, name: str) -> None:
    if cache.dim() != 4 or not cache.is_contiguous():
        raise ValueError(
            f"{name}_cache must be contiguous [blocks, block_size, kv_heads, head_dim], not {tuple(cache.shape)}"
        )
    if new.dim() != 3 or new.shape[1:] != cache.shape[2:]:
        heads, dim = cache.shape[2:]
        raise ValueError(f"{name} must be [tokens, {heads}, {dim}] like its cache, not {tuple(new.shape)}")
    if new.dtype != cache.dtype:
        raise ValueError(f"{name} is {new.dtype}, its cache {cache.dtype}")
    if slots.dtype != torch.int64 or slots.shape != new.shape[:1]:
        raise ValueError(f"slots must be int64 [{new.shape[0]}], not {slots.dtype} {tuple(slots.shape)}")
    if not new.device == cache.device == slots.device:
        raise ValueError(f"{name}, its cache and slots lie on {new.device}, {cache.device} and {slots.device}")
