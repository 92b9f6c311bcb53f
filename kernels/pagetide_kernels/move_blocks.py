"""Copy or swap the KV blocks of all layers at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .copy_blocks import copy_blocks
from .dispatch import choose
from .swap_blocks import swap_blocks


def move_blocks(
    sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], pairs: Sequence[tuple[int, int]]
) -> None:
    """Copy block a of each source over block b of its target, as it was before, for each (a, b) of `pairs`.

    On a GPU this is one launch for all caches of equal blocks, also between the device and pinned host memory, unless a
    block is both read and written.

    Args:
        sources, targets: one each a layer and part, [blocks, ...]. A target may be its source.

    Raises:
        ValueError: caches or pairs do not fit together.
    """
    if not pairs:
        return
    if _in_one_launch(sources, targets, pairs):
        from .gpu.move_blocks import move_blocks as launch  # needs the package triton

        for size in sorted({s[0].nbytes for s in sources}):
            chosen = [(s, t) for s, t in zip(sources, targets, strict=True) if s[0].nbytes == size]
            launch([s for s, _ in chosen], [t for _, t in chosen], pairs)
        return
    for source, target in zip(sources, targets, strict=True):
        if source is target:
            copy_blocks(source, pairs)
        else:
            swap_blocks(source, target, pairs)


def _in_one_launch(
    sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], pairs: Sequence[tuple[int, int]]
) -> bool:
    caches = (*sources, *targets)
    device = next((c.device for c in caches if c.device.type == "cuda"), sources[0].device)
    if choose(device).name != "triton" or any(c[0].nbytes % 8 for c in caches):
        return False
    # Only pinned host memory has an address on the device. (An interpreted kernel reads any.)
    if device.type == "cuda" and any(c.device.type == "cpu" and not c.is_pinned() for c in caches):
        return False
    within = any(s is t for s, t in zip(sources, targets, strict=True))
    return not (within and {a for a, _ in pairs} & {b for _, b in pairs})
