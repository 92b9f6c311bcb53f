"""Paged attention in Triton: one launch for decodes and prefill chunks together.

The query heads that share a KV head are packed as rows of one tile, beside a few query rows of the same sequence, so
that keys and values are read once for all of them. Scores and sums are float32, with the online softmax (Milakov and
Gimelshein, 2018) in powers of two. A batch of decodes with long contexts is cut into parts of SPLIT positions, which
`_merge_kernel` joins ("flash decoding"): the parts lie at fixed positions, so that a row's result does not depend on
other requests in the batch.
"""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl

from .devices import on_its_device

LOG2_E = tl.constexpr(1.4426950408889634)
# Positions of one part of a long decode, and parts that are joined at a time.
SPLIT = 1024
PARTS = 16
# Rows of a tile: the least that the matrix units take, and what chunks of many rows use better.
FEW_ROWS, MANY_ROWS = 16, 64
# Query rows a sequence from which on a batch counts as chunks.
CHUNK_ROWS = 8
IS_AMD = torch.version.hip is not None


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a launch is compiled for: a tile of `rows` has `heads` of one KV head for each of its `tile_queries`.

    keys: positions of a key tile. options: further options of Triton.
    """

    rows: int
    heads: int
    tile_queries: int
    keys: int
    options: dict[str, int]


def sizes_for(
    tokens: int, sequences: int, group: int, head_dim: int, element_size: int, is_amd: bool = IS_AMD
) -> Sizes:
    """Tile sizes of a batch, such that no register spills and the tiles fit the shared memory of any GPU since Ampere.

    (tests/kernels/test_ahead_of_time.py holds them to it.) float32 is multiplied without matrix units, which takes more
    registers; its tiles stay small. A group of more heads than a tile has rows is cut into several.
    """
    padded, few = triton.next_power_of_2(head_dim), FEW_ROWS
    if element_size == 2:
        few = min(2 * FEW_ROWS, max(FEW_ROWS, triton.next_power_of_2(group)))
    many = tokens >= CHUNK_ROWS * sequences and element_size == 2
    rows = (MANY_ROWS if padded <= 256 else MANY_ROWS // 2) if many else few
    heads = min(group, rows)
    keys = max(16, min(32 if many and is_amd else 64, (8192 if element_size == 2 else 2048) // padded))
    options = {"num_warps": 8 if padded > 256 or (rows == MANY_ROWS and padded >= 128) else 4}
    # With tiles for the next turn of the loop, too, they would not fit an AMD GPU.
    return Sizes(rows, heads, rows // heads, keys, options | ({"num_stages": 1} if padded > 256 else {}))


@on_its_device
def attend(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_starts: torch.Tensor,
    max_query_len: int,
    max_context_len: int,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
) -> torch.Tensor:
    """Arguments, checked before, and result as in `pagetide_kernels.paged_attention`."""
    if query.stride(2) != 1:
        query = query.contiguous()
    if block_tables.stride(1) != 1:
        block_tables = block_tables.contiguous()
    tokens, heads, head_dim = query.shape
    value_dim, kv_heads, sequences = value_cache.shape[3], key_cache.shape[2], context_lens.shape[0]
    group = heads // kv_heads
    sizes = sizes_for(tokens, sequences, group, max(head_dim, value_dim), query.element_size())
    out = torch.empty(tokens, heads, value_dim, dtype=query.dtype, device=query.device)
    splits = triton.cdiv(max_context_len, SPLIT) if max_query_len == 1 else 1
    sums, tops, totals = out, out, out  # unused without splits
    if splits > 1:
        sums = torch.empty(tokens, heads, splits, value_dim, dtype=torch.float32, device=query.device)
        tops, totals = torch.empty(2, tokens, heads, splits, dtype=torch.float32, device=query.device)
    # Each sequence has at most one tile that is not full, so this bounds their number without a look at the device.
    tiles = tokens // sizes.tile_queries + sequences
    _attention_kernel[(tiles, kv_heads * triton.cdiv(group, sizes.heads), splits)](
        query,
        key_cache,
        value_cache,
        out,
        sums,
        tops,
        totals,
        block_tables,
        context_lens,
        query_starts,
        sequences,
        query.stride(0),
        query.stride(1),
        block_tables.stride(0),
        scale,
        soft_cap or 0.0,
        sliding_window or 0,
        KV_HEADS=kv_heads,
        GROUP=group,
        KEY_DIM=head_dim,
        VALUE_DIM=value_dim,
        KEY_PADDED=max(16, triton.next_power_of_2(head_dim)),
        VALUE_PADDED=max(16, triton.next_power_of_2(value_dim)),
        BLOCK=key_cache.shape[1],
        ROWS=sizes.rows,
        HEADS=sizes.heads,
        TILE_QUERIES=sizes.tile_queries,
        KEYS=sizes.keys,
        SPLIT=SPLIT if splits > 1 else 0,
        WINDOWED=sliding_window is not None,
        CAPPED=soft_cap is not None,
        **sizes.options,
    )
    if splits > 1:
        _merge_kernel[(tokens, heads)](
            sums,
            tops,
            totals,
            out,
            splits,
            HEADS=heads,
            VALUE_DIM=value_dim,
            VALUE_PADDED=triton.next_power_of_2(value_dim),
            PARTS=PARTS,
        )
    return out


@triton.jit
def _sequence_of(query_starts, sequences, tile, TILE_QUERIES: tl.constexpr):
    """The last sequence whose first tile, `query_starts[s] // TILE_QUERIES + s`, is not behind `tile`."""
    low = 0
    high = sequences
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(query_starts + middle) // TILE_QUERIES + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _capped(scores, cap):
    """cap * tanh(scores / cap)"""
    return cap * (1.0 - 2.0 / (tl.exp(2.0 * scores / cap) + 1.0))


# What differs from batch to batch must not be compiled for, or a step would wait for the compiler.
@triton.jit(do_not_specialize=["sequences", "table_stride", "window"])
def _attention_kernel(  # noqa: PLR0915 (a kernel is one piece)
    query,
    key_cache,
    value_cache,
    out,
    sums_out,
    tops_out,
    totals_out,
    block_tables,
    context_lens,
    query_starts,
    sequences,
    query_stride,
    query_head_stride,
    table_stride,
    scale,
    soft_cap,
    window,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
):
    """One tile of query rows, HEADS heads (or what is left) of one KV head's group, one part of the context."""
    tile = tl.program_id(0)
    cuts: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    kv_head = tl.program_id(1) // cuts
    part = tl.program_id(2)
    sequence = _sequence_of(query_starts, sequences, tile, TILE_QUERIES)
    start = tl.load(query_starts + sequence)
    count = tl.load(query_starts + sequence + 1) - start
    context = tl.load(context_lens + sequence)
    first = (tile - (start // TILE_QUERIES + sequence)) * TILE_QUERIES
    if first >= count:
        return

    rows = tl.arange(0, ROWS)
    query_row = first + rows // HEADS
    of_group = tl.program_id(1) % cuts * HEADS + rows % HEADS
    head = kv_head * GROUP + of_group
    is_row = (rows // HEADS < TILE_QUERIES) & (query_row < count) & (of_group < GROUP)
    token = (start + query_row).to(tl.int64)
    position = context - count + query_row

    key_dims = tl.arange(0, KEY_PADDED)
    value_dims = tl.arange(0, VALUE_PADDED)
    places = token[:, None] * query_stride + head[:, None].to(tl.int64) * query_head_stride + key_dims[None, :]
    q = tl.load(query + places, mask=is_row[:, None] & (key_dims < KEY_DIM)[None, :], other=0.0)

    last = tl.minimum(first + TILE_QUERIES, count) - 1 + context - count
    low = 0
    if WINDOWED:
        low = tl.maximum(0, context - count + first - window + 1)
    high = last + 1
    if SPLIT:
        low = tl.maximum(low, part * SPLIT)
        high = tl.minimum(high, (part + 1) * SPLIT)

    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, VALUE_PADDED], tl.float32)
    table = block_tables + sequence.to(tl.int64) * table_stride
    for begin in range(low // KEYS * KEYS, high, KEYS):
        keys = begin + tl.arange(0, KEYS)
        is_key = (keys >= low) & (keys < high)
        block = tl.load(table + keys // BLOCK, mask=is_key, other=0).to(tl.int64)
        slot = (block * BLOCK + keys % BLOCK) * KV_HEADS + kv_head
        k = tl.load(
            key_cache + slot[None, :] * KEY_DIM + key_dims[:, None],
            mask=is_key[None, :] & (key_dims < KEY_DIM)[:, None],
            other=0.0,
        )
        scores = tl.dot(q, k, input_precision="ieee") * scale
        if CAPPED:
            scores = _capped(scores, soft_cap)
        seen = is_key[None, :] & (keys[None, :] <= position[:, None])
        if WINDOWED:
            seen = seen & (keys[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores * LOG2_E, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        # A row that has seen no key yet has no top to subtract.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.where(seen, tl.exp2(scores - base[:, None]), 0.0)
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weights, 1)
        v = tl.load(
            value_cache + slot[:, None] * VALUE_DIM + value_dims[None, :],
            mask=is_key[:, None] & (value_dims < VALUE_DIM)[None, :],
            other=0.0,
        )
        sums = sums * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        top = new_top

    flat = token * (KV_HEADS * GROUP) + head
    is_value = is_row[:, None] & (value_dims < VALUE_DIM)[None, :]
    if SPLIT:
        flat = flat * tl.num_programs(2) + part
        # A part that holds nothing only says so.
        holds = (rows * 0 + low) < high
        tl.store(sums_out + flat[:, None] * VALUE_DIM + value_dims[None, :], sums, mask=is_value & holds[:, None])
        tl.store(tops_out + flat, top, mask=is_row)
        tl.store(totals_out + flat, total, mask=is_row)
    else:
        result = sums / tl.where(is_row, total, 1.0)[:, None]
        places = flat[:, None] * VALUE_DIM + value_dims[None, :]
        tl.store(out + places, result.to(out.dtype.element_ty), mask=is_value)


@triton.jit(do_not_specialize=["splits"])
def _merge_kernel(
    sums,
    tops,
    totals,
    out,
    splits,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    PARTS: tl.constexpr,
):
    """The parts of one row of one head, PARTS at a time: how many there are changes no bit, and no use of registers."""
    flat = tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)
    first = flat * splits
    dims = tl.arange(0, VALUE_PADDED)
    best = float("-inf")
    for begin in range(0, splits, PARTS):
        parts = begin + tl.arange(0, PARTS)
        best = tl.maximum(best, tl.max(tl.load(tops + first + parts, mask=parts < splits, other=float("-inf")), 0))
    base = tl.where(best == float("-inf"), 0.0, best)
    joined = tl.zeros([VALUE_PADDED], tl.float32)
    whole = 0.0
    for begin in range(0, splits, PARTS):
        parts = begin + tl.arange(0, PARTS)
        top = tl.load(tops + first + parts, mask=parts < splits, other=float("-inf"))
        total = tl.load(totals + first + parts, mask=parts < splits, other=0.0)
        # Parts that saw nothing have weight 0. (Where scores are NaN the total is, and stays so.)
        weights = tl.where(total == 0.0, 0.0, tl.exp2(top - base))
        places = (first + parts[:, None]) * VALUE_DIM + dims[None, :]
        mask = (total != 0.0)[:, None] & (dims < VALUE_DIM)[None, :]
        joined += tl.sum(tl.load(sums + places, mask=mask, other=0.0) * weights[:, None], 0)
        whole += tl.sum(total * weights, 0)
    tl.store(out + flat * VALUE_DIM + dims, (joined / whole).to(out.dtype.element_ty), mask=dims < VALUE_DIM)
