"""What paged attention means, one query row and one head at a time."""

from __future__ import annotations

import torch


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    query_starts: torch.Tensor,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """softmax(cap(scale * q k)) v over the keys that each query row may see, in `dtype`.

    The query rows of sequence s are its last ones: row i stands at position `context - rows + i` and sees the keys up
    to its own position, the last `sliding_window` of them where that is set. `cap(x)` is
    `soft_cap * tanh(x / soft_cap)`. Shapes as in `pagetide_kernels.paged_attention`.
    """
    block_size, kv_heads = key_cache.shape[1:3]
    group = query.shape[1] // kv_heads
    out = torch.empty(*query.shape[:2], value_cache.shape[3], dtype=dtype)
    for s in range(len(context_lens)):
        first, end = int(query_starts[s]), int(query_starts[s + 1])
        for row in range(first, end):
            position = int(context_lens[s]) - (end - row)
            low = 0 if sliding_window is None else max(0, position - sliding_window + 1)
            seen = torch.arange(low, position + 1)
            blocks, places = block_tables[s].long()[seen // block_size], seen % block_size
            keys, values = key_cache[blocks, places].to(dtype), value_cache[blocks, places].to(dtype)
            for head in range(query.shape[1]):
                scores = keys[:, head // group] @ query[row, head].to(dtype) * scale
                if soft_cap is not None:
                    scores = soft_cap * torch.tanh(scores / soft_cap)
                out[row, head] = torch.softmax(scores, 0) @ values[:, head // group]
    return out
