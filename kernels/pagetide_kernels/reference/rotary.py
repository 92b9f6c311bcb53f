"""What rotary positions mean."""

from __future__ import annotations

import torch


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    """Rotate the first numbers of each head in pairs, by the angles of its token, in float32 (Su et al., 2021).

    heads: [tokens, heads, head_dim]. cos, sin: [tokens, rotated]; pairs are (i, i + rotated), or (2 i, 2 i + 1) where
    `interleaved`. What lies behind the pairs stays.
    """
    out = heads.float().clone()
    rotated = cos.shape[1]
    for pair in range(rotated):
        i, j = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + rotated)
        c, s = cos[:, pair, None].float(), sin[:, pair, None].float()
        a, b = heads[:, :, i].float(), heads[:, :, j].float()
        out[:, :, i], out[:, :, j] = a * c - b * s, b * c + a * s
    return out
