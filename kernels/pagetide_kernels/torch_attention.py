"""Paged attention from torch's own ops, after a plan (`attention_plan`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .attention_plan import TILE_ROWS, DecodeGroup, Plan, Tile


def attend(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: Plan,
    scale: float,
    soft_cap: float | None,
) -> torch.Tensor:
    """Compute a plan; arguments as in `paged_attention`."""
    out = query.new_empty(*query.shape[:2], value_cache.shape[3])
    keys, values = key_cache.view(-1, key_cache.shape[3]), value_cache.view(-1, value_cache.shape[3])
    for group in plan.groups:
        out[group.rows] = _attend_group(query, keys, values, group, plan.kv_heads, scale, soft_cap)
    for chunk in plan.chunks:
        k = keys.index_select(0, chunk.cache_rows).view(plan.kv_heads, -1, keys.shape[1])
        v = values.index_select(0, chunk.cache_rows).view(plan.kv_heads, -1, values.shape[1])
        for tile in chunk.tiles:
            seen = slice(tile.low, tile.high)
            rows = query[tile.first : tile.end].transpose(0, 1)
            out[tile.first : tile.end] = _attend_tile(rows, k[:, seen], v[:, seen], tile, scale, soft_cap)
    return out


def _attend_group(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    group: DecodeGroup,
    kv_heads: int,
    scale: float,
    soft_cap: float | None,
) -> torch.Tensor:
    """[n, heads, head_dim]"""
    n, (_, heads, head_dim) = len(group.rows), query.shape
    q = query.index_select(0, group.rows).view(n * kv_heads, heads // kv_heads, head_dim)
    k = keys.index_select(0, group.cache_rows).view(n * kv_heads, -1, head_dim)
    v = values.index_select(0, group.cache_rows).view(n * kv_heads, -1, values.shape[1])
    scores = _capped(torch.bmm(q.float(), k.float().transpose(1, 2)).mul_(scale), soft_cap)
    if group.padding is not None:
        scores.view(n, kv_heads, *scores.shape[1:]).masked_fill_(group.padding, float("-inf"))
    return torch.bmm(torch.softmax(scores, -1), v.float()).view(n, heads, -1).to(query.dtype)


def _attend_tile(
    rows: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tile: Tile,
    scale: float,
    soft_cap: float | None,
) -> torch.Tensor:
    """rows [heads, r, head_dim], k and v [kv_heads, keys, head_dim] -> [r, heads, head_dim]"""
    if soft_cap is None:
        mask = None if tile.hidden is None else ~tile.hidden
        q, k, v = rows[None], k[None].to(rows.dtype), v[None].to(rows.dtype)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
        )
        return out[0].transpose(0, 1)
    pieces = []
    for first in range(0, rows.shape[1], TILE_ROWS):
        piece = rows[:, first : first + TILE_ROWS]
        if tile.hidden is None:
            seen = first + piece.shape[1]
            hidden = torch.ones(piece.shape[1], seen, dtype=torch.bool, device=k.device).triu_(1 + first)
        else:
            seen, hidden = k.shape[1], tile.hidden[first : first + TILE_ROWS]
        pieces.append(_attend_capped(piece, k[:, :seen], v[:, :seen], hidden, scale, soft_cap))
    return torch.cat(pieces, 1).transpose(0, 1).to(rows.dtype)


def _attend_capped(
    rows: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    hidden: torch.Tensor,
    scale: float,
    soft_cap: float,
) -> torch.Tensor:
    """rows [heads, r, head_dim] -> float32 of the same form; the fused op of torch cannot cap scores."""
    heads, count, head_dim = rows.shape
    q = rows.float().reshape(k.shape[0], -1, head_dim)
    scores = _capped(torch.bmm(q, k.float().transpose(1, 2)).mul_(scale), soft_cap).view(heads, count, -1)
    weights = torch.softmax(scores.masked_fill_(hidden, float("-inf")), -1)
    return torch.bmm(weights.view(k.shape[0], -1, k.shape[1]), v.float()).view(heads, count, -1)


def _capped(scores: torch.Tensor, soft_cap: float | None) -> torch.Tensor:
    """The scores, each drawn smoothly into +-soft_cap; changes them in place."""
    return scores if soft_cap is None else scores.div_(soft_cap).tanh_().mul_(soft_cap)
