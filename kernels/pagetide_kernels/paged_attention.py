"""Attention over a KV cache that lies in blocks: decodes and prefill chunks of one batch in one call."""

from __future__ import annotations

import torch

from . import torch_attention
from .attention_plan import Plan, make_plan
from .cpu import attention as cpu_attention
from .dispatch import choose

# What the caches of a float32 query may be, too.
_NARROW = (torch.float16, torch.bfloat16)


def uses_plan(device: torch.device) -> bool:
    """Whether `paged_attention` on `device` takes its time from a plan that the layers of a step share."""
    return choose(device).name == "torch"


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_starts: torch.Tensor,
    max_query_len: int,
    max_context_len: int,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    plan: Plan | None = None,
) -> torch.Tensor:
    """Each query row attends to the keys of its sequence up to its own position.

    The keys and values of the query rows themselves must lie in the cache already (`reshape_and_cache`). Slots behind
    a sequence's context are never read. Softmax is computed in float32. Grouped heads: query head h reads KV head
    h // (heads // kv_heads).

    Args:
        query: [tokens, heads, head_dim], the rows of one sequence behind those of the one before.
        key_cache, value_cache: [blocks, block_size, kv_heads, head_dim], contiguous, of the query's dtype; or
            float16 or bfloat16 while the query is float32. (Triton's op rounds such a query to their dtype.)
        block_tables: int32 [sequences, blocks of the longest]; what lies behind a context's last block is ignored.
        context_lens: int32 [sequences], tokens in the cache, those of this call included.
        query_starts: int32 [sequences + 1], first row of each sequence, and the number of rows.
        max_query_len, max_context_len: the greatest of each.
        scale: factor of the scores.
        sliding_window: keys that a row sees at most, its own included; None: all.
        soft_cap: scores become soft_cap * tanh(score / soft_cap); None: as they are.
        plan: `attention_plan.make_plan` of the same tables, if the caller has it; unused where `uses_plan` is false.

    Returns:
        [tokens, heads, head_dim] in the dtype of `query`.

    Raises:
        ValueError: shapes, dtypes, devices or limits do not fit together.
    """
    _check_query(query, key_cache, value_cache)
    _check_tables(query, key_cache, block_tables, context_lens, query_starts)
    _check_limits(block_tables, key_cache, max_query_len, max_context_len, sliding_window, soft_cap)
    kernels = choose(query.device).name
    if kernels == "triton":
        from .gpu import paged_attention as gpu_attention  # needs the package triton

        out = gpu_attention.attend(
            query.to(key_cache.dtype),
            key_cache,
            value_cache,
            block_tables,
            context_lens,
            query_starts,
            max_query_len,
            max_context_len,
            scale,
            sliding_window,
            soft_cap,
        )
        return out.to(query.dtype)
    if kernels == "cpp":
        return cpu_attention.attend(
            query,
            key_cache,
            value_cache,
            block_tables,
            context_lens,
            query_starts,
            scale,
            sliding_window,
            soft_cap,
        )
    if plan is None:
        plan = make_plan(block_tables, context_lens, query_starts, key_cache.shape, sliding_window)
    elif plan.sliding_window != sliding_window or plan.kv_heads != key_cache.shape[2]:
        raise ValueError("the plan was made for another window or cache")
    return torch_attention.attend(query, key_cache, value_cache, plan, scale, soft_cap)


def _check_query(query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor) -> None:
    if query.dim() != 3:
        raise ValueError(f"query must be [tokens, heads, head_dim], not {tuple(query.shape)}")
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        if cache.dim() != 4 or not cache.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous [blocks, block_size, kv_heads, head_dim], not {tuple(cache.shape)}"
            )
        fits = cache.dtype == query.dtype or (query.dtype == torch.float32 and cache.dtype in _NARROW)
        if not fits or cache.device != query.device:
            raise ValueError(
                f"query is {query.dtype} on {query.device}, {name} is {cache.dtype} on {cache.device}; must be equal"
            )
    if key_cache.shape[:3] != value_cache.shape[:3] or key_cache.dtype != value_cache.dtype:
        raise ValueError(
            f"caches differ: {key_cache.dtype} {tuple(key_cache.shape)} and "
            f"{value_cache.dtype} {tuple(value_cache.shape)}"
        )
    if query.shape[2] != key_cache.shape[3] or query.shape[1] % key_cache.shape[2]:
        raise ValueError(
            f"query {tuple(query.shape)} does not fit a cache of {key_cache.shape[2]} heads of {key_cache.shape[3]}"
        )


def _check_tables(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_starts: torch.Tensor,
) -> None:
    sequences = context_lens.shape[0] if context_lens.dim() == 1 else -1
    if sequences < 1 or query_starts.shape != (sequences + 1,) or block_tables.dim() != 2:
        raise ValueError(
            "must be block_tables [S, M], context_lens [S], query_starts [S + 1], S > 0; not "
            f"{tuple(block_tables.shape)}, {tuple(context_lens.shape)}, {tuple(query_starts.shape)}"
        )
    if block_tables.shape[0] != sequences:
        raise ValueError(f"block_tables has {block_tables.shape[0]} rows for {sequences} sequences")
    for name, table in (
        ("block_tables", block_tables),
        ("context_lens", context_lens),
        ("query_starts", query_starts),
    ):
        if table.dtype != torch.int32 or table.device != query.device:
            raise ValueError(f"{name} must be int32 on {query.device}, not {table.dtype} on {table.device}")


def _check_limits(
    block_tables: torch.Tensor,
    key_cache: torch.Tensor,
    max_query_len: int,
    max_context_len: int,
    sliding_window: int | None,
    soft_cap: float | None,
) -> None:
    room = block_tables.shape[1] * key_cache.shape[1]
    if not 1 <= max_query_len <= max_context_len <= room:
        raise ValueError(
            f"must be 1 <= max_query_len <= max_context_len <= {room} (the block tables' room): "
            f"{max_query_len}, {max_context_len}"
        )
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"sliding_window must be at least 1, not {sliding_window}")
    if soft_cap is not None and soft_cap <= 0:
        raise ValueError(f"soft_cap must be above 0, not {soft_cap}")
