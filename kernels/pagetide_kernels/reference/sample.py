"""What sampling by temperature, top-k, min-p and top-p means."""

from __future__ import annotations

import torch


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    bits: torch.Tensor,
) -> torch.Tensor:
    """One token a row, after sorting it; shapes and meaning as in `pagetide_kernels.gpu.sample`, in float64.

    Each token has the exponential variable -log(1 - (bits + 1/2) / 2 ** 31). The least variable over weight wins.
    """
    chosen = []
    for row in range(len(logits)):
        values, places = torch.sort(logits[row].double(), descending=True, stable=True)
        weights = ((values - values[0]) / temperature[row].double()).exp()
        ranks = torch.arange(len(values))
        if top_k[row] > 0:
            weights[ranks >= top_k[row]] = 0
        weights[weights < min_p[row]] = 0
        if top_p[row] < 1:
            before = weights.cumsum(0) - weights
            weights[(before >= top_p[row] * weights.sum()) & (ranks > 0)] = 0
        u = ((bits[row, places].double() + 0.5) / 2**31).clamp(max=1 - 2**-24)
        chosen.append(places[(weights / -torch.log1p(-u)).argmax()])
    return torch.stack(chosen)
