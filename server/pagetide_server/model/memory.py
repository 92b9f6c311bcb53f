"""Sizes: what a token costs in the KV cache, and how many blocks there is room for.

All layers keep all blocks of a sequence. Layers with a sliding window do not read what lies before it, but their blocks
are not given back, since one block table serves all layers.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from pagetide_spec.config import GIB, EngineConfig
from pagetide_spec.errors import SettingError

from .host_memory import available_bytes
from .limits import BatchLimits, batch_limits
from .loader import LoadedModel
from .network import Layer, Shape
from .profile import estimated_activations, peak_bytes

# On a CPU, of the memory that is free once the weights are loaded: the part for the KV cache if nothing is set. Of what
# that leaves, the most that swap space takes. The rest is for activations, the API process and everybody else.
CPU_CACHE_SHARE = 0.4
CPU_SWAP_SHARE = 0.2
# A machine's memory is shared with more than one replica: none gets more than this without asking for it, unless one
# sequence of the model's context length needs it.
CPU_CACHE_MOST = 4 * GIB
# Memory that nobody asked for must at least hold one sequence of this length, or of the model's context length.
LEAST_TOKENS = 2048
FEWER_ACTIVATIONS = "lower max_num_batched_tokens or max_num_seqs to save activations"


@dataclasses.dataclass(frozen=True)
class Memory:
    """The memory that the KV cache is cut from, in bytes.

    Attributes:
        total: of a GPU all that it has; of a CPU what is free once the weights are loaded.
        held: what of it the cache cannot get: activations, and on a GPU the weights and other processes.
        on_gpu: which of the two it is.
    """

    total: int
    held: int
    on_gpu: bool

    @property
    def free(self) -> int:
        """What the cache can get at most."""
        return max(0, self.total - self.held)


def usable_context_length(config: EngineConfig, window: int, blocks: int) -> int:
    """The longest prompt plus answer that `blocks` hold. (A length that was asked for fits: see `check_room`.)"""
    return min(window, blocks * config.block_size)


def bytes_per_token(layers: list[Layer], dtype: torch.dtype) -> int:
    """KV cache of one token in all layers."""
    return sum(layer.kv_heads * (layer.key_dim + layer.value_dim) for layer in layers) * dtype.itemsize


def weight_bytes(shape: Shape, dtype: torch.dtype, quantization: str) -> int:
    """Memory of a model's weights; of weights that its own files quantize, as if they were not."""
    if quantization != "int8":
        return shape.parameters * dtype.itemsize
    numbers, groups = shape.linear
    return numbers + groups * torch.float32.itemsize + (shape.parameters - numbers) * dtype.itemsize


def kv_blocks(config: EngineConfig, loaded: LoadedModel, graph_bytes: int = 0) -> tuple[int, int]:
    """(blocks of the KV cache, blocks of swap space) of a loaded model on its device.

    `graph_bytes` are what captured decode steps will take of the device.

    Raises:
        SettingError: there is no room; says what to change.
    """
    block = bytes_per_token(loaded.layers, loaded.cache_dtype) * config.block_size
    limits = batch_limits(config, loaded.device, loaded.max_model_len)
    on_gpu = loaded.device.type == "cuda"
    memory = gpu_memory(config, loaded, limits) if on_gpu else cpu_memory(loaded, limits)
    memory = dataclasses.replace(memory, held=memory.held + graph_bytes)
    blocks = cache_blocks(config, memory, block, loaded.max_model_len, limits)
    # On a CPU the cache is of the same memory, though it is not taken yet.
    left = available_bytes() if on_gpu else memory.free - blocks * block
    return blocks, swap_blocks(config, block, left, on_gpu)


def cache_blocks(
    config: EngineConfig, memory: Memory, block_bytes: int, max_model_len: int, limits: BatchLimits
) -> int:
    """Blocks of the KV cache; the engine and `pagetide plan` both ask here.

    Raises:
        SettingError: the cache would not hold one sequence of the length that was asked for; says what to change.
    """
    window = -(-max_model_len // config.block_size)
    blocks = room(config, memory, window * block_bytes) // block_bytes
    if config.kv_cache_memory_gib is None:
        # More could never be used.
        blocks = min(blocks, limits.max_num_seqs * window)
    check_room(config, blocks, block_bytes, max_model_len, memory)
    return blocks


def room(config: EngineConfig, memory: Memory, window_bytes: int) -> int:
    """Bytes for the KV cache; below 0 where what is held has no room by itself.

    `kv_cache_memory_gib` decides where it is set. Else, on a GPU, it is what `gpu_memory_utilization` leaves beside
    what is held. On a CPU it is CPU_CACHE_SHARE of the free memory, but no more than what is held leaves, nor than
    CPU_CACHE_MOST or one context of `window_bytes`, whichever is more.

    Raises:
        SettingError: `kv_cache_memory_gib` is more than there is.
    """
    if config.kv_cache_memory_gib is not None:
        return _asked_bytes(config.kv_cache_memory_gib, memory)
    if memory.on_gpu:
        return int(memory.total * config.gpu_memory_utilization) - memory.held
    return min(int(memory.total * CPU_CACHE_SHARE), memory.free, max(CPU_CACHE_MOST, window_bytes))


def _asked_bytes(gib: float, memory: Memory) -> int:
    asked, free = int(gib * GIB), memory.free
    if asked > free:
        most = math.floor(free / GIB * 1000) / 1000
        way_out = f"set it to at most {most:g}" if most else f"{FEWER_ACTIVATIONS}, or take a device with more memory"
        beside = "weights and activations" if memory.on_gpu else "activations"
        problem = f"there are {free / GIB:.3g} GiB free beside {beside}; {way_out}"
        raise SettingError("kv_cache_memory_gib", gib, problem)
    return asked


def least_tokens(config: EngineConfig, max_model_len: int) -> int:
    """Tokens for which the cache must have room, of a model whose context has `max_model_len`."""
    if config.max_model_len is not None:
        return config.max_model_len
    return 1 if config.kv_cache_memory_gib is not None else min(LEAST_TOKENS, max_model_len)


def gib_for(tokens: int, block_size: int, block_bytes: int) -> float:
    """The least `kv_cache_memory_gib`, in thousandths, of a cache that holds so many tokens of one sequence."""
    return math.ceil(-(-tokens // block_size) * block_bytes / GIB * 1000) / 1000


def check_room(config: EngineConfig, blocks: int, block_bytes: int, max_model_len: int, memory: Memory) -> None:
    """Refuse a cache in which a sequence of the length that was asked for does not fit.

    Args:
        config: what was asked for.
        blocks: blocks that there is room for; below 0 where even the rest has none.
        block_bytes: size of one.
        max_model_len: the model's context length, or what was asked for.
        memory: what the blocks were cut from.

    Raises:
        SettingError: names the setting that gives room, and the value that it needs.
    """
    needed = least_tokens(config, max_model_len)
    needed_blocks = -(-needed // config.block_size)
    if blocks >= needed_blocks:
        return
    if config.kv_cache_memory_gib is not None and config.max_model_len is None:
        raise _not_one_block(config, block_bytes, max_model_len, memory)
    held, gib = max(0, blocks) * config.block_size, gib_for(needed, config.block_size, block_bytes)
    shorter = f", or max_model_len to at most {held}" if config.max_model_len is not None and held else ""
    says = f"{needed} tokens need {gib:g} GiB of KV cache, but there is room for {held} tokens; "
    if config.kv_cache_memory_gib is None and memory.on_gpu:
        missing = (needed_blocks - blocks) * block_bytes
        problem = says + _more_of_the_gpu(config.gpu_memory_utilization, missing, memory.total) + shorter
        raise SettingError("gpu_memory_utilization", config.gpu_memory_utilization, problem)
    if config.kv_cache_memory_gib is None and needed_blocks * block_bytes > memory.free:
        beside = f"activations leave {memory.free / GIB:.3g} of {memory.total / GIB:.3g} GiB; {FEWER_ACTIVATIONS}"
        raise SettingError("kv_cache_memory_gib", None, f"{says}{beside}, or give it more memory{shorter}")
    raise SettingError("kv_cache_memory_gib", config.kv_cache_memory_gib, f"{says}set it to at least {gib:g}{shorter}")


def _not_one_block(config: EngineConfig, block_bytes: int, max_model_len: int, memory: Memory) -> SettingError:
    """Advises what is of use: the model's context, or where that is more than there is, LEAST_TOKENS."""
    gib = gib_for(max_model_len, config.block_size, block_bytes)
    if gib * GIB > memory.free:
        max_model_len = min(LEAST_TOKENS, max_model_len)
        gib = gib_for(max_model_len, config.block_size, block_bytes)
    problem = f"holds not one block; set it to at least {gib:g}, for a request of {max_model_len} tokens"
    return SettingError("kv_cache_memory_gib", config.kv_cache_memory_gib, problem)


def _more_of_the_gpu(utilization: float, missing: int, device_bytes: int) -> str:
    share = math.ceil((utilization + missing / device_bytes) * 100) / 100
    if share <= 1:
        return f"set it to at least {share:g}"
    gib = math.ceil((device_bytes * utilization + missing) / GIB * 10) / 10
    return f"set it to 1 on a GPU of at least {gib:g} GiB, or {FEWER_ACTIVATIONS}"


def swap_blocks(config: EngineConfig, block_bytes: int, available: int, on_gpu: bool) -> int:
    """Blocks of swap space.

    On a CPU swapping only moves blocks within the same memory, so it never takes more than CPU_SWAP_SHARE of it.

    Args:
        config: what was asked for.
        block_bytes: size of one.
        available: bytes of host memory that nobody else needs.
        on_gpu: whether the KV cache lies elsewhere.

    Raises:
        SettingError: beside a GPU, the host has less memory than was asked for.
    """
    wanted = int(config.swap_space_gib * GIB)
    if not on_gpu:
        wanted = min(wanted, int(max(0, available) * CPU_SWAP_SHARE))
    elif wanted > available:
        problem = f"the host has {available / GIB:.1f} GiB available; set it to at most {available // 2 / GIB:.1f}"
        raise SettingError("swap_space_gib", config.swap_space_gib, problem)
    return wanted // block_bytes


def gpu_memory(config: EngineConfig, loaded: LoadedModel, limits: BatchLimits) -> Memory:
    """A GPU's memory, after the greatest step was run once."""
    _, total = torch.cuda.mem_get_info(loaded.device)
    token = bytes_per_token(loaded.layers, loaded.cache_dtype)
    # No sequence becomes longer than the context, nor than all the memory beside the weights.
    longest = (total - torch.cuda.memory_allocated(loaded.device)) // token
    window = max(1, min(loaded.max_model_len, longest))
    peak = peak_bytes(loaded, limits, window, config.block_size)
    free, total = torch.cuda.mem_get_info(loaded.device)
    # What other processes hold counts as well.
    others = total - free - torch.cuda.memory_reserved(loaded.device)
    return Memory(total, peak + max(0, others), on_gpu=True)


def cpu_memory(loaded: LoadedModel, limits: BatchLimits) -> Memory:
    """The memory that is free now, the weights being loaded; what activations take is estimated."""
    held = estimated_activations(loaded.hf_config, loaded.vocab_size, limits, loaded.dtype, on_gpu=False)
    return Memory(available_bytes(), held, on_gpu=False)
