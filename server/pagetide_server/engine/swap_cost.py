"""What it costs to preempt a sequence: swap it to host memory, or compute it again?"""

from __future__ import annotations

from typing import Literal

from .limits import SchedulerConfig


def cheaper_mode(config: SchedulerConfig, *, blocks: int, tokens: int) -> Literal["swap", "recompute"]:
    """The cheaper way to bring back a sequence, by this estimate of the seconds that each takes from the device:

        swap      = 2 * blocks * block_size * kv_bytes_per_token / swap_bytes_per_second     (out and in again)
        recompute = tokens / recompute_tokens_per_second

    Both are linear: the attention's quadratic part, which makes recomputing long texts dearer still, is left out, and
    so is what the prefix cache may keep of the text.

    Args:
        blocks: blocks to copy.
        tokens: computed tokens that would be lost, without those in blocks that other sequences keep alive.
    """
    swap = 2 * blocks * config.block_size * config.kv_bytes_per_token / config.swap_bytes_per_second
    return "swap" if swap < tokens / config.recompute_tokens_per_second else "recompute"
