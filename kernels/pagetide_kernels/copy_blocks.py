"""Copy blocks within one KV cache, for sequences that part from a shared block."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def copy_blocks(cache: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy block `source` over block `target` for each (source, target) of `pairs`, in place.

    All sources are read before any target is written, so a block may be source of several pairs, or be the source of
    one and the target of another.

    Args:
        cache: [blocks, ...]

    Raises:
        ValueError: a block number lies outside the cache, or a target comes twice.
    """
    if not pairs:
        return
    sources, targets = checked_pairs(pairs, cache.shape[0], cache.shape[0])
    moved = cache.index_select(0, torch.tensor(sources, device=cache.device))
    cache.index_copy_(0, torch.tensor(targets, device=cache.device), moved)


def checked_pairs(pairs: Sequence[tuple[int, int]], num_sources: int, num_targets: int) -> tuple[list[int], list[int]]:
    """`pairs` as two lists.

    Raises:
        ValueError: a block number lies outside its cache, or a target comes twice.
    """
    sources, targets = [a for a, _ in pairs], [b for _, b in pairs]
    if min(sources) < 0 or max(sources) >= num_sources:
        raise ValueError(f"source blocks must lie in 0..{num_sources - 1}: {min(sources)}..{max(sources)}")
    if min(targets) < 0 or max(targets) >= num_targets:
        raise ValueError(f"target blocks must lie in 0..{num_targets - 1}: {min(targets)}..{max(targets)}")
    if len(set(targets)) != len(targets):
        raise ValueError("a target block comes twice")
    return sources, targets
