"""Copy KV blocks in Triton, those of all layers in one launch: within the caches, or between device and pinned memory.

The kernel gets the addresses of the caches as numbers. Pinned host memory has the same address on the device (unified
addressing), so that one launch can also swap.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from ..copy_blocks import checked_pairs
from .devices import on_its_device

# Numbers of 8 bytes that one program moves.
CHUNK = 2048


@on_its_device
def move_blocks(
    sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], pairs: Sequence[tuple[int, int]]
) -> None:
    """Copy block a of each source over block b of its target for each (a, b) of `pairs`.

    Args:
        sources, targets: one each a layer and part, [blocks, ...], contiguous; there is one launch for each size of
            block. On a GPU or in pinned host memory. A target may be its source.
        pairs: no block of a cache may be written by one and read by another, as then the order would matter.

    Raises:
        ValueError: caches or pairs do not fit; names what.
    """
    if not pairs or not sources:
        return
    _check(sources, targets)
    froms, tos = checked_pairs(pairs, min(len(s) for s in sources), min(len(t) for t in targets))
    if any(s is t for s, t in zip(sources, targets, strict=True)) and set(froms) & set(tos):
        raise ValueError("a block is both read and written; copy in two calls")
    device = next((t.device for t in (*sources, *targets) if t.device.type == "cuda"), sources[0].device)
    table = torch.tensor([froms, tos], dtype=torch.int64, pin_memory=device.type == "cuda")
    table = table.to(device, non_blocking=True)
    for size in sorted({s[0].nbytes for s in sources}):
        caches = [(s.data_ptr(), t.data_ptr()) for s, t in zip(sources, targets, strict=True) if s[0].nbytes == size]
        grid = (len(froms), len(caches), triton.cdiv(size // 8, CHUNK))
        addresses = _addresses(tuple(caches), device)
        _move_blocks_kernel[grid](addresses, table, len(froms), WORDS=size // 8, CHUNK=CHUNK)


@functools.lru_cache(maxsize=8)
def _addresses(caches: tuple[tuple[int, int], ...], device: torch.device) -> torch.Tensor:
    """int64 [caches, source and target] on the device; the same few ones come at every step."""
    return torch.tensor(caches, dtype=torch.int64).to(device)


def _check(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} sources and {len(targets)} targets")
    for tensor in (*sources, *targets):
        if tensor.dim() < 2 or not tensor.is_contiguous() or not len(tensor):
            raise ValueError(f"caches must be contiguous [blocks, ...], not {tuple(tensor.shape)}")
        if tensor.data_ptr() % 16:
            raise ValueError("caches must begin at a multiple of 16 bytes")
        if tensor[0].nbytes % 8:
            raise ValueError(f"a block must be a multiple of 8 bytes, not {tensor[0].nbytes}")
    for source, target in zip(sources, targets, strict=True):
        if source[0].nbytes != target[0].nbytes:
            raise ValueError(f"blocks differ: {source[0].nbytes} and {target[0].nbytes} bytes")


@triton.jit(do_not_specialize=["count"])
def _move_blocks_kernel(addresses, table, count, WORDS: tl.constexpr, CHUNK: tl.constexpr):
    pair = tl.program_id(0)
    cache = tl.program_id(1)
    # The compiler knows nothing else of these addresses; the launcher has checked them.
    source = tl.multiple_of(tl.load(addresses + 2 * cache).to(tl.pointer_type(tl.int64)), 16)
    target = tl.multiple_of(tl.load(addresses + 2 * cache + 1).to(tl.pointer_type(tl.int64)), 16)
    read = tl.load(table + pair)
    written = tl.load(table + count + pair)
    words = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    moved = tl.load(source + read * WORDS + words, mask=words < WORDS)
    tl.store(target + written * WORDS + words, moved, mask=words < WORDS)
