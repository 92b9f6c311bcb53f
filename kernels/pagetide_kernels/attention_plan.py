"""How to compute paged attention of one batch with torch's own ops: which cache rows to gather for which query rows.

Decodes of similar length are computed together: their keys and values are gathered row by row through the block
table, laid out [sequence, kv_head, position, head_dim], so that the grouped query heads of one KV head are the rows of
one matrix product and nothing is repeated. Prefill chunks run one by one in tiles of query rows, each over the keys
that its rows can see.
"""

from __future__ import annotations

import dataclasses

import torch

# Query rows of one prefill tile. Smaller tiles waste fewer masked scores, larger ones fewer calls.
TILE_ROWS = 256
# Padding a group of decodes may hold: a call costs about as much as reading this many rows, beside a share of the
# group's own rows.
FREE_PADDING_ROWS = 512
PADDING_SHARE = 0.25
# Key rows that a group of decodes may gather, so that the copies stay small beside the cache.
MAX_GROUP_ROWS = 65536


@dataclasses.dataclass(frozen=True)
class DecodeGroup:
    """Sequences with one query row each, padded to the same length.

    rows: int64 [n], their query rows. cache_rows: int64 [n * kv_heads * length], rows of the cache seen as
    [blocks * block_size * kv_heads, head_dim]; padding repeats the last valid row. padding: bool [n, 1, 1, length],
    true where a key is padding; None where there is none.
    """

    rows: torch.Tensor
    cache_rows: torch.Tensor
    padding: torch.Tensor | None


@dataclasses.dataclass(frozen=True)
class Tile:
    """Query rows `first..end` of the batch; they see keys `low..high` of their chunk's gathered keys.

    hidden: bool [rows, keys], true where a row must not see a key; None: the plain causal triangle.
    """

    first: int
    end: int
    low: int
    high: int
    hidden: torch.Tensor | None


@dataclasses.dataclass(frozen=True)
class Chunk:
    """One sequence's prefill: cache_rows int64 [kv_heads * length] as in DecodeGroup, and its tiles."""

    cache_rows: torch.Tensor
    tiles: list[Tile]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How to compute one batch at one window; the same for all layers that share window and cache shape."""

    sliding_window: int | None
    kv_heads: int
    groups: list[DecodeGroup]
    chunks: list[Chunk]


def make_plan(
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_starts: torch.Tensor,
    cache_shape: torch.Size,
    sliding_window: int | None,
) -> Plan:
    """Plan of a batch; arguments as in `paged_attention`."""
    _, block_size, kv_heads, _ = cache_shape
    tables = block_tables.long()
    contexts, starts = context_lens.tolist(), query_starts.tolist()
    counts = query_starts.diff().tolist()
    span = [min(c, sliding_window or c) for c in contexts]
    decodes = [s for s, count in enumerate(counts) if count == 1]
    groups = [
        _decode_group(tables, contexts, starts, members, span[members[0]], block_size, kv_heads)
        for members in _similar(decodes, span, kv_heads)
    ]
    chunks = [
        _chunk(tables[s], contexts[s], starts[s], counts[s], sliding_window, block_size, kv_heads)
        for s in range(len(counts))
        if counts[s] > 1
    ]
    return Plan(sliding_window, kv_heads, groups, chunks)


def _similar(decodes: list[int], span: list[int], kv_heads: int) -> list[list[int]]:
    """Decodes in groups of similar length, longest first, each within the bounds on padding and size."""
    groups: list[list[int]] = []
    used = padded = 0
    for s in sorted(decodes, key=lambda s: -span[s]):
        length = span[groups[-1][0]] if groups else 0
        used, padded = used + span[s], padded + length
        too_padded = padded - used > FREE_PADDING_ROWS + PADDING_SHARE * used
        if not groups or too_padded or padded * kv_heads > MAX_GROUP_ROWS:
            groups.append([])
            used = padded = span[s]
        groups[-1].append(s)
    return groups


def _decode_group(
    tables: torch.Tensor,
    contexts: list[int],
    starts: list[int],
    members: list[int],
    length: int,
    block_size: int,
    kv_heads: int,
) -> DecodeGroup:
    device = tables.device
    ends = torch.tensor([contexts[s] for s in members], device=device)[:, None]
    lows = (ends - length).clamp(min=0)
    positions = lows + torch.arange(length, device=device)
    padding = None
    if any(contexts[s] < length for s in members):
        padding = (positions >= ends)[:, None, None, :]
        positions = torch.minimum(positions, ends - 1)
    mine = tables.index_select(0, torch.tensor(members, device=device))
    slots = mine.gather(1, positions // block_size) * block_size + positions % block_size
    rows = torch.tensor([starts[s] for s in members], device=device)
    return DecodeGroup(rows, _cache_rows(slots, kv_heads), padding)


def _cache_rows(slots: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Slots [..., length] -> rows of [slots * kv_heads, head_dim], ordered [..., kv_heads, length], flat."""
    if kv_heads == 1:
        return slots.flatten()
    heads = torch.arange(kv_heads, device=slots.device)[:, None]
    return (slots[..., None, :] * kv_heads + heads).flatten()


def _chunk(
    table: torch.Tensor,
    context: int,
    start: int,
    count: int,
    window: int | None,
    block_size: int,
    kv_heads: int,
) -> Chunk:
    computed = context - count
    low = max(0, computed - window + 1) if window else 0
    positions = torch.arange(low, context, device=table.device)
    slots = table[positions // block_size] * block_size + positions % block_size
    if computed == 0 and (window is None or context <= window):
        tiles = [Tile(start, start + count, 0, context, None)]
    else:
        tiles = [
            _tile(start, computed, low, first, min(first + TILE_ROWS, count), window, table.device)
            for first in range(0, count, TILE_ROWS)
        ]
    return Chunk(_cache_rows(slots, kv_heads), tiles)


def _tile(start: int, computed: int, low: int, first: int, end: int, window: int | None, device: torch.device) -> Tile:
    """Rows `first..end` of a chunk whose gathered keys begin at position `low`."""
    seen = max(low, computed + first - window + 1) if window else low
    rows = torch.arange(computed + first, computed + end, device=device)[:, None]
    keys = torch.arange(seen, computed + end, device=device)
    hidden = keys > rows
    if window:
        hidden |= keys <= rows - window
    return Tile(start + first, start + end, seen - low, computed + end - low, hidden)
