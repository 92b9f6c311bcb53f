"""Copy blocks within KV caches, for sequences that part from a shared block."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .dispatch import choose


def copy_blocks(caches: Sequence[torch.Tensor], pairs: Sequence[tuple[int, int]]) -> None:
    """Copy block `source` over block `target` of each cache, for each (source, target) of `pairs`, in place.

    All sources are read before any target is written, so a block may be source of several pairs, or be the source of
    one and the target of another. On a GPU it is one launch for all caches, unless there is such another.

    Args:
        caches: each [blocks, ...], equal in the number of blocks and on one device.
        pairs: the same for all of them.

    Raises:
        ValueError: a block number lies outside the caches, or a target comes twice.
    """
    if not pairs or not caches:
        return
    blocks, device = caches[0].shape[0], caches[0].device
    froms, tos = checked_pairs(pairs, blocks, blocks)
    if choose(device).name == "triton" and not set(froms) & set(tos):
        from .gpu.move_blocks import move_blocks  # needs the package triton

        move_blocks(caches, caches, pairs)
        return
    # [2, pairs]: one transfer for all caches, which does not hold up the host.
    both = torch.tensor([froms, tos], pin_memory=device.type == "cuda")
    sources, targets = both.to(device, non_blocking=True)
    for cache in caches:
        cache.index_copy_(0, targets, cache.index_select(0, sources))


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
