"""Structure masks on logits."""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray

from ..faults import RequestFault
from .matcher import MaskFiller, Matcher


@functools.cache
def _filler() -> MaskFiller:
    return MaskFiller()


def mask_logits(logits: torch.Tensor, structured: list[tuple[int, Matcher]]) -> dict[int, RequestFault]:
    """Rule out, in place, what the structures do not allow.

    Args:
        logits: [rows, vocabulary] float32; the rows named in `structured` are changed.
        structured: rows with their matchers.

    Returns:
        Row to what went wrong, for matchers that cannot go on.
    """
    masks = _filler().fill([matcher for _, matcher in structured])
    known = min(logits.shape[1], structured[0][1].vocab_size)
    forbidden = _forbidden(masks, known, logits.device)
    for i, (row, _) in enumerate(structured):
        logits[row, :known].masked_fill_(forbidden[i], float("-inf"))
        logits[row, known:] = float("-inf")
    return {row: matcher.fault for row, matcher in structured if matcher.fault}


def _forbidden(masks: NDArray[np.int32], width: int, device: torch.device) -> torch.Tensor:
    """[rows, width] bool, True where the bit is 0; the bits travel packed, and are unpacked on the device."""
    if device.type == "cpu":
        bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little", count=width)
        return torch.from_numpy(bits == 0)
    packed = torch.from_numpy(masks).to(device)
    unpacked = (packed.unsqueeze(-1) >> torch.arange(32, device=device, dtype=torch.int32)) & 1
    return unpacked.flatten(1)[:, :width].eq(0)
