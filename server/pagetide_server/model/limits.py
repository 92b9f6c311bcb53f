"""What one step may hold at most."""

from __future__ import annotations

import dataclasses

import torch

from pagetide_spec.config import EngineConfig


@dataclasses.dataclass(frozen=True)
class BatchLimits:
    """Sequences and tokens of one step."""

    max_num_seqs: int
    max_num_batched_tokens: int


def batch_limits(config: EngineConfig, device: torch.device, window: int) -> BatchLimits:
    """The configured limits, or the defaults of the device; a step of whole prompts only holds at least a `window`."""
    seqs, tokens = (256, 8192) if device.type == "cuda" else (64, 2048)
    if not config.enable_chunked_prefill:
        tokens = max(tokens, window)
    return BatchLimits(config.max_num_seqs or seqs, config.max_num_batched_tokens or tokens)
