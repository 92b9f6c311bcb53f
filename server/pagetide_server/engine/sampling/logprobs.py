"""Log probabilities of tokens under the model's own distribution: log_softmax of the raw logits.

Raw means: before temperature, penalties, bias and masks, as vLLM reports them by default. Nothing that leaves here is
NaN or infinite: what is impossible has `FLOOR`.
"""

from __future__ import annotations

import torch

from ...wire.messages import TokenLogprobs
from .torch_draw import largest

FLOOR = -9999.0
# Rows worked on at a time: few, which then stay in a CPU's cache.
_ROWS = 4


def token_logprobs(logits: torch.Tensor, token_ids: list[int], top: int) -> list[TokenLogprobs]:
    """Log probability, rank and the `top` most probable alternatives of one token a row.

    Args:
        logits: [rows, vocabulary] float32, raw.
        token_ids: the token of each row.
        top: number of most probable tokens to list; 0 for none.
    """
    found: list[TokenLogprobs] = []
    for start in range(0, len(token_ids), _ROWS):
        found += _some(logits[start : start + _ROWS], token_ids[start : start + _ROWS], top)
    return found


def _some(logits: torch.Tensor, token_ids: list[int], top: int) -> list[TokenLogprobs]:
    ids = torch.tensor(token_ids, device=logits.device).unsqueeze(1)
    total = logits.logsumexp(-1, keepdim=True)
    own = logits.gather(-1, ids)
    # Counting in float32 is exact up to 2**24 tokens, and several times quicker than counting booleans.
    ranks = torch.gt(logits, own, out=torch.empty_like(logits)).sum(-1).tolist()
    chosen = _finite(own - total).squeeze(1).tolist()
    count = min(top, logits.shape[1])
    # A few more than asked for, so that equal logits come in the order of their ids.
    values, places = largest(logits, min(count + 8, logits.shape[1])) if count else (own[:, :0], ids[:, :0])
    top_values = _finite(values[:, :count] - total).tolist()
    top_ids = places[:, :count].tolist()
    return [
        TokenLogprobs(token_id, chosen[i], int(ranks[i]) + 1, top_ids[i], top_values[i])
        for i, token_id in enumerate(token_ids)
    ]


def _finite(logprobs: torch.Tensor) -> torch.Tensor:
    return logprobs.nan_to_num(nan=FLOOR).clamp(FLOOR, 0.0)
