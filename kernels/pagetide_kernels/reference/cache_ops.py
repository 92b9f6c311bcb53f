"""What the ops that move KV blocks mean, one token or block at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Store each token's key and value in its slot."""
    block_size = key_cache.shape[1]
    for token, slot in enumerate(slots.tolist()):
        key_cache[slot // block_size, slot % block_size] = key[token]
        value_cache[slot // block_size, slot % block_size] = value[token]


def move_blocks(source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy block a of `source` as it was before over block b of `target`, for each (a, b)."""
    before = source.clone()
    for a, b in pairs:
        target[b] = before[a].to(target.device)
