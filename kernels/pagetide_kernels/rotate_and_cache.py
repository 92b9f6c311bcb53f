"""Apply RoPE to queries and keys, and write keys and values into the paged KV cache."""

from __future__ import annotations

import torch

from .dispatch import choose
from .reshape_and_cache import reshape_and_cache


def rotate_and_cache(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """The rotated query; stores each token's rotated key and its value at `slots[t]`.

    The first `2 * rotated` numbers of a head are rotated in pairs (i, i + rotated), the others stay.

    Args:
        query: [tokens, heads, head_dim]; on a GPU changed in place.
        key: [tokens, kv_heads, head_dim]. value: [tokens, kv_heads, value_dim].
        cos, sin: [tokens, rotated], of each pair's angle.
        key_cache, value_cache: [blocks, block_size, kv_heads, ...], contiguous; changed.
        slots: int64 [tokens]; no slot twice.

    Raises:
        ValueError: shapes, dtypes or strides do not fit together.
    """
    if choose(query.device).name == "triton":
        from .gpu.rotary_cache import rotate_and_cache as fused  # needs the package triton

        fused(query, key, value, cos, sin, key_cache, value_cache, slots)
        return query
    # Here a cache may be narrower than what is written to it.
    kept = rotated(key, cos, sin).to(key_cache.dtype), value.to(value_cache.dtype)
    reshape_and_cache(*kept, key_cache, value_cache, slots)
    return rotated(query, cos, sin)


def rotated(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, head_dim] rotated by [tokens, rotated] angles."""
    half = cos.shape[1]
    left, right, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    c, s = cos[:, None], sin[:, None]
    return torch.cat((left * c - right * s, right * c + left * s, rest), dim=-1)
