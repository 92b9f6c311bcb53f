"""Move blocks between the device's KV cache and its copy in host memory, many in one transfer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .copy_blocks import checked_pairs


def swap_blocks(caches: Sequence[tuple[torch.Tensor, torch.Tensor]], pairs: Sequence[tuple[int, int]]) -> None:
    """Copy block a of a source over block b of its target, for each (a, b) of `pairs` and each pair of caches.

    The blocks of a cache are gathered first, so that one transfer moves them all however scattered they lie.

    Args:
        caches: each [blocks, ...], source and target equal but for the number of blocks and the device, which are the
            same in all pairs of caches; the targets are changed.
        pairs: the same for all of them.

    Raises:
        ValueError: source and target differ in shape or dtype, a block number lies outside, or a target comes twice.
    """
    for source, target in caches:
        if source.shape[1:] != target.shape[1:] or source.dtype != target.dtype:
            raise ValueError(
                f"blocks differ: {tuple(source.shape[1:])} {source.dtype} and {tuple(target.shape[1:])} {target.dtype}"
            )
    if not pairs or not caches:
        return
    source, target = caches[0]
    froms, tos = checked_pairs(pairs, source.shape[0], target.shape[0])
    sources, targets = torch.tensor(froms, device=source.device), torch.tensor(tos, device=target.device)
    for source, target in caches:
        target.index_copy_(0, targets, source.index_select(0, sources).to(target.device))
