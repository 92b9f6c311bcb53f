"""Let a network's layers run on the ops of its device, as far as they are known; the log says how far."""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch

from pagetide_spec.config import GIB, EngineConfig

from ..checkpoint.files import Progress
from .fused import fuse
from .network import Shape
from .packed import pack_network
from .projections import merge_projections
from .residual import join_residuals
from .rotary import defer_rotary, settle_frequencies
from .weights import dtype_name

log = logging.getLogger(__name__)


def use_cpu_ops(
    network: Any, shape: Shape, config: EngineConfig, dtype: torch.dtype, kept_as: torch.dtype, progress: Progress
) -> None:
    """Bring the network's matrices, whose type is `kept_as`, into the form of the CPU ops."""
    kind = "int8" if config.quantization == "int8" else "own"
    tell = functools.partial(progress, "packing weights")
    tell(0.0)
    taken = pack_network(network, shape.layers, kind, dtype == torch.float32, tell)
    tell(1.0)
    log.info("linear layers: %.2f GiB of %s", taken / GIB, "int8" if kind == "int8" else dtype_name(kept_as))


def use_gpu_ops(network: Any) -> None:
    """Let the layers run on the Triton ops."""
    settle_frequencies(network)
    log.info("layers swapped for fused ones: %s", ", ".join(fuse(network)) or "none is known")
    merged, (joined, passing), deferred = merge_projections(network), join_residuals(network), defer_rotary(network)
    log.info(
        "layers whose query, key and value are one product: %d; whose outputs are added by the norms behind: %d of "
        "attention, %d of the gated layer; that leave rotation to the cache's op: %d",
        merged,
        joined,
        passing,
        deferred,
    )
