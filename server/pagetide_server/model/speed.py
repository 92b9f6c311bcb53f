"""How fast this machine computes and copies, measured at start in a fraction of a second.

It is what `auto` preemption decides by (`engine/swap_cost.py`): on a GPU swap space lies behind a bus, on a CPU it is
the same memory, and models differ a thousandfold in what a token costs to compute again.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import torch

from pagetide_kernels.packed_linear import linear, pack
from pagetide_kernels.swap_blocks import swap_blocks

from .loader import LoadedModel

# Of the speed of one large matrix product, what a whole forward reaches: attention, norms and launches take the rest.
FORWARD_SHARE = 0.5
# Rows and columns of the product: large enough to keep all units busy, small enough to take milliseconds.
_PRODUCT = {"cpu": (256, 1024), "cuda": (4096, 4096)}
_BLOCKS, _BLOCK_BYTES = 128, 1 << 16
_TRIES = 3


@dataclasses.dataclass(frozen=True)
class Speed:
    """Tokens that a prompt's forward computes in a second, and bytes that swapping moves in one (one way)."""

    recompute_tokens_per_second: float
    swap_bytes_per_second: float


def measure(loaded: LoadedModel) -> Speed:
    """The best of a few tries each; allocates some MiB on the device and frees them.

    A token of a prompt costs two operations a parameter, embeddings aside: they are looked up, and only the last token
    of a prompt is compared with all the vocabulary. Of a mixture of experts all are counted, though only some are
    computed: a batch of prompts reads them all.
    """
    flops = _products(loaded.device, loaded.dtype)
    return Speed(FORWARD_SHARE * flops / (2 * max(loaded.computed_parameters, 1)), _copies(loaded.device))


@torch.inference_mode()
def _products(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a matrix product as the model's layers do it."""
    rows, size = _PRODUCT[device.type]
    right = torch.zeros(size, size, dtype=dtype, device=device)
    if device.type == "cpu":
        weight, x = pack(right), torch.zeros(rows, size)
        return 2.0 * rows * size * size / _best_seconds(lambda: linear(x, weight), device)
    left = torch.zeros(rows, size, dtype=dtype, device=device)
    return 2.0 * rows * size * size / _best_seconds(lambda: left @ right, device)


@torch.inference_mode()
def _copies(device: torch.device) -> float:
    """Bytes per second from the device's blocks to those in host memory."""
    source = torch.zeros(_BLOCKS, _BLOCK_BYTES, dtype=torch.uint8, device=device)
    target = torch.zeros(_BLOCKS, _BLOCK_BYTES, dtype=torch.uint8)
    pairs = [(i, _BLOCKS - 1 - i) for i in range(_BLOCKS)]
    return source.nbytes / _best_seconds(lambda: swap_blocks([(source, target)], pairs), device)


def _best_seconds(work: Callable[[], object], device: torch.device) -> float:
    best = float("inf")
    for _ in range(_TRIES):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return best
