"""Move blocks between the device's KV cache and its copy in host memory, many in one transfer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .copy_blocks import checked_pairs


def swap_blocks(source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy block a of `source` over block b of `target` for each (a, b) of `pairs`.

    The blocks are gathered first, so that one transfer moves them all however scattered they lie.

    Args:
        source, target: [blocks, ...], equal but for the number of blocks and the device; `target` is changed.

    Raises:
        ValueError: the caches differ in shape or dtype, a block number lies outside, or a target comes twice.
    """
    if source.shape[1:] != target.shape[1:] or source.dtype != target.dtype:
        raise ValueError(
            f"blocks differ: {tuple(source.shape[1:])} {source.dtype} and {tuple(target.shape[1:])} {target.dtype}"
        )
    if not pairs:
        return
    froms, tos = checked_pairs(pairs, source.shape[0], target.shape[0])
    moved = source.index_select(0, torch.tensor(froms, device=source.device)).to(target.device)
    target.index_copy_(0, torch.tensor(tos, device=target.device), moved)
