"""Sizes: what a token costs in the KV cache, and how many blocks there is room for.

All layers keep all blocks of a sequence. Layers with a sliding window do not read what lies before it, but their blocks
are not given back, since one block table serves all layers.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import SettingError

from .host_memory import available_bytes
from .loader import LoadedModel
from .network import Layer
from .profile import peak_bytes

GIB = 1 << 30
# On a CPU, of the memory that is free once the weights are loaded: the part for the KV cache if nothing is set, and the
# most that swap space takes. The rest is for activations, the API process and everybody else.
CPU_CACHE_SHARE = 0.4
CPU_SWAP_SHARE = 0.2
# A machine's memory is shared with more than one replica: nobody gets more than this without asking for it, unless one
# sequence of the model's window needs it.
CPU_CACHE_MOST = 4 * GIB
# Memory that nobody asked for must at least hold one sequence of this length, or of the model's window.
LEAST_TOKENS = 2048


@dataclasses.dataclass(frozen=True)
class BatchLimits:
    """What one step may hold at most."""

    max_num_seqs: int
    max_num_batched_tokens: int


def batch_limits(config: EngineConfig, device: torch.device, window: int) -> BatchLimits:
    """The configured limits, or the defaults of the device; a step of whole prompts only holds at least a `window`."""
    seqs, tokens = (256, 8192) if device.type == "cuda" else (64, 2048)
    if not config.enable_chunked_prefill:
        tokens = max(tokens, window)
    return BatchLimits(config.max_num_seqs or seqs, config.max_num_batched_tokens or tokens)


def usable_window(config: EngineConfig, window: int, blocks: int) -> int:
    """The longest prompt plus answer that `blocks` hold. (A window that was asked for fits: see `check_room`.)"""
    return min(window, blocks * config.block_size)


def useful_blocks(config: EngineConfig, limits: BatchLimits, window: int) -> int:
    """Blocks of `max_num_seqs` sequences as long as the window."""
    return limits.max_num_seqs * -(-window // config.block_size)


def bytes_per_token(layers: list[Layer], dtype: torch.dtype) -> int:
    """KV cache of one token in all layers."""
    return sum(layer.kv_heads * (layer.key_dim + layer.value_dim) for layer in layers) * dtype.itemsize


def kv_blocks(config: EngineConfig, loaded: LoadedModel) -> tuple[int, int]:
    """(blocks of the KV cache, blocks of swap space).

    `kv_cache_memory_gib` decides where it is set. Else, on a CPU, the cache gets CPU_CACHE_SHARE of the available
    memory (control groups counted), but no more than CPU_CACHE_MOST or one window, whichever is more, and than
    max_num_seqs sequences of max_model_len tokens can use. On a GPU it gets what `gpu_memory_utilization` leaves beside
    the weights and the greatest step's activations, which are measured.

    Raises:
        SettingError: the cache would not hold one sequence of the length that was asked for; says what to change.
    """
    block = bytes_per_token(loaded.layers, loaded.dtype) * config.block_size
    limits = batch_limits(config, loaded.device, loaded.max_model_len)
    window = -(-loaded.max_model_len // config.block_size)
    device_bytes = 0
    if loaded.device.type == "cuda":
        free, device_bytes = torch.cuda.mem_get_info(loaded.device)
    else:
        free = available_bytes()
    if config.kv_cache_memory_gib is not None:
        blocks = asked_bytes(config, free) // block
    else:
        room = gpu_room(config, loaded) if device_bytes else cpu_room(free, window * block)
        blocks = min(room // block, useful_blocks(config, limits, loaded.max_model_len))
    check_room(config, blocks, block, loaded.max_model_len, device_bytes)
    return blocks, swap_blocks(config, block, available_bytes(), on_gpu=device_bytes > 0)


def cpu_room(free: int, window_bytes: int) -> int:
    """Bytes for the KV cache on a CPU with `free` bytes, if a sequence as long as the window takes `window_bytes`."""
    return min(int(free * CPU_CACHE_SHARE), max(CPU_CACHE_MOST, window_bytes))


def asked_bytes(config: EngineConfig, free: int) -> int:
    """`kv_cache_memory_gib` in bytes.

    Raises:
        SettingError: it is more than is `free`.
    """
    assert config.kv_cache_memory_gib is not None
    asked = int(config.kv_cache_memory_gib * GIB)
    if asked > free:
        most = math.floor(max(0, free) / GIB * 1000) / 1000
        way_out = f"set it to at most {most:g}" if most else "take a device with more memory"
        problem = f"there are {max(0, free) / GIB:.3g} GiB free beside what else is held there; {way_out}"
        raise SettingError("kv_cache_memory_gib", config.kv_cache_memory_gib, problem)
    return asked


def check_room(config: EngineConfig, blocks: int, block_bytes: int, max_model_len: int, device_bytes: int = 0) -> None:
    """Refuse a cache in which a sequence of the length that was asked for does not fit.

    Args:
        config: what was asked for.
        blocks: blocks that there is room for; below 0 where even the rest has none.
        block_bytes: size of one.
        max_model_len: the model's window, or what was asked for.
        device_bytes: memory of the GPU; 0 for a CPU.

    Raises:
        SettingError: names the setting that gives room, and the value that it needs.
    """
    if config.max_model_len is not None:
        needed = config.max_model_len
    else:
        needed = 1 if config.kv_cache_memory_gib is not None else min(LEAST_TOKENS, max_model_len)
    needed_blocks = -(-needed // config.block_size)
    if blocks >= needed_blocks:
        return
    held = max(0, blocks) * config.block_size
    gib = math.ceil(needed_blocks * block_bytes / GIB * 1000) / 1000
    shorter = f", or max_model_len to at most {held}" if config.max_model_len is not None and held else ""
    says = f"{needed} tokens need {gib:g} GiB of KV cache, but there is room for {held} tokens; "
    if device_bytes and config.kv_cache_memory_gib is None:
        missing = (needed_blocks - blocks) * block_bytes
        problem = says + _more_of_the_gpu(config.gpu_memory_utilization, missing, device_bytes) + shorter
        raise SettingError("gpu_memory_utilization", config.gpu_memory_utilization, problem)
    raise SettingError("kv_cache_memory_gib", config.kv_cache_memory_gib, f"{says}set it to at least {gib:g}{shorter}")


def _more_of_the_gpu(utilization: float, missing: int, device_bytes: int) -> str:
    share = math.ceil((utilization + missing / device_bytes) * 100) / 100
    if share <= 1:
        return f"set it to at least {share:g}"
    gib = math.ceil((device_bytes * utilization + missing) / GIB * 10) / 10
    return f"set it to 1 on a GPU of at least {gib:g} GiB, or lower max_num_batched_tokens to save activations"


def swap_blocks(config: EngineConfig, block_bytes: int, available: int, on_gpu: bool) -> int:
    """Blocks of swap space.

    On a CPU swapping only moves blocks within the same memory, so it never takes more than CPU_SWAP_SHARE of it.

    Raises:
        SettingError: on a GPU, where the space is pinned, the host has less memory available.
    """
    wanted = int(config.swap_space_gib * GIB)
    if not on_gpu:
        wanted = min(wanted, int(available * CPU_SWAP_SHARE))
    elif wanted > available:
        problem = f"the host has {available / GIB:.1f} GiB available; set it to at most {available // 2 / GIB:.1f}"
        raise SettingError("swap_space_gib", config.swap_space_gib, problem)
    return wanted // block_bytes


def gpu_room(config: EngineConfig, loaded: LoadedModel) -> int:
    """Bytes for the KV cache on a GPU, after the greatest step was run once."""
    limits = batch_limits(config, loaded.device, loaded.max_model_len)
    peak = peak_bytes(loaded, limits.max_num_seqs, limits.max_num_batched_tokens, config.block_size)
    free, total = torch.cuda.mem_get_info(loaded.device)
    # What other processes hold counts against the share as well.
    others = total - free - torch.cuda.memory_reserved(loaded.device)
    return int(total * config.gpu_memory_utilization) - peak - max(0, others)
