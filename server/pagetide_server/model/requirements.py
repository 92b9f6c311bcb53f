"""What a model needs of a device and how many requests fit there, found out without its weights.

The engine's own rules are asked, with what it would measure estimated.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any, Literal

import torch

from pagetide_spec.config import GIB, EngineConfig
from pagetide_spec.errors import SettingError

from ..checkpoint.files import check_whole, locate, resolve_config, weight_files
from .gguf.convert import read_gguf_config
from .limits import batch_limits
from .loader import cache_dtype_of, dtype_of, max_context_length, read_config
from .memory import (
    CPU_CACHE_SHARE,
    FEWER_ACTIVATIONS,
    Memory,
    bytes_per_token,
    cache_blocks,
    least_tokens,
    usable_context_length,
    weight_bytes,
)
from .network import Shape, examine
from .profile import estimated_activations, estimated_graphs
from .stored import stored_dtype
from .weights import dtype_name

Device = Literal["gpu", "cpu"]

# CUDA's context and its libraries' work space.
RUNTIME_BYTES = 700 << 20


@dataclasses.dataclass(frozen=True)
class ModelPlan:
    """Sizes in bytes; `concurrency` maps a length in tokens to the sequences of that length that run at once.

    `max_model_len` is what the engine serves, `model_window` what was asked for or the model allows.

    `weight_dtype` is that of weights which are not rounded to int8. Of a CPU `device_bytes` is what is free before the
    weights are loaded. `activation_bytes` is an estimate, `runtime_bytes` a usual value; all else is exact, but that
    weights which are quantized in the model's own files are counted as if they were not.
    """

    model: str
    architecture: str
    device: Device
    dtype: str
    weight_dtype: str
    cache_dtype: str
    quantization: str
    parameters: int
    weight_bytes: int
    layers: int
    windowed_layers: int
    bytes_per_token: int
    max_model_len: int
    model_window: int
    device_bytes: int
    activation_bytes: int
    block_size: int
    blocks: int
    concurrency: dict[int, int]
    runtime_bytes: int = RUNTIME_BYTES

    @property
    def cache_bytes(self) -> int:
        """Size of the KV cache."""
        return self.blocks * self.block_size * self.bytes_per_token


def make_plan(config: EngineConfig, device_bytes: int, device: Device, lengths: list[int] | None = None) -> ModelPlan:
    """Work out the plan of a configuration on a GPU of `device_bytes`, or on a CPU with that much free.

    Raises:
        SettingError: the model cannot be served or has no room; says what to change.
    """
    model = _examined(config, device)
    room = _room(config, model, device_bytes, device)
    return ModelPlan(
        model=config.model,
        architecture=(getattr(model.hf_config, "architectures", None) or [model.hf_config.model_type])[0],
        device=device,
        dtype=dtype_name(model.dtype),
        weight_dtype=dtype_name(model.weight_dtype),
        cache_dtype=dtype_name(model.cache_dtype),
        quantization=config.quantization,
        parameters=model.shape.parameters,
        weight_bytes=model.weight_bytes,
        layers=len(model.shape.layers),
        windowed_layers=sum(layer.sliding_window is not None for layer in model.shape.layers),
        bytes_per_token=model.bytes_per_token,
        max_model_len=room.window,
        model_window=model.window,
        device_bytes=device_bytes,
        activation_bytes=room.activation_bytes,
        block_size=config.block_size,
        blocks=room.blocks,
        concurrency={n: room.fitting(n, config.block_size) for n in lengths or _usual_lengths(room.window)},
        runtime_bytes=RUNTIME_BYTES if device == "gpu" else 0,
    )


def device_of(config: EngineConfig, asked: Device | None) -> Device:
    """What to count for: what was asked for, else a GPU, but with a quantization that is built for the CPU only.

    Raises:
        SettingError: a GPU was asked for, and the quantization does not run there.
    """
    if config.quantization == "int8" and asked == "gpu":
        raise SettingError("quantization", config.quantization, "is built for the CPU only; set --device to cpu")
    return asked or ("cpu" if config.quantization == "int8" else "gpu")


@dataclasses.dataclass(frozen=True)
class _Model:
    """What is known of a model without its weights."""

    hf_config: Any
    dtype: torch.dtype
    weight_dtype: torch.dtype
    cache_dtype: torch.dtype
    shape: Shape
    window: int
    bytes_per_token: int
    weight_bytes: int


@dataclasses.dataclass(frozen=True)
class _Room:
    """What a device has for a model; `window` is the longest sequence that the engine will serve."""

    activation_bytes: int
    blocks: int
    window: int
    max_num_seqs: int

    def fitting(self, length: int, block_size: int) -> int:
        """Sequences of a length that the engine runs at once.

        Raises:
            SettingError: it serves none of that length.
        """
        if length > self.window:
            raise SettingError("--lengths", length, f"a sequence has at most {self.window} tokens here")
        return min(self.max_num_seqs, self.blocks // -(-length // block_size))


def _examined(config: EngineConfig, kind: Device) -> _Model:
    hf_config, device = _configuration(config), _torch_device(kind)
    dtype = dtype_of(hf_config, config, device)
    weight_dtype, cache_dtype = _kept_as(hf_config, config, dtype, kind), cache_dtype_of(dtype, config)
    shape = examine(hf_config, config)
    return _Model(
        hf_config,
        dtype,
        weight_dtype,
        cache_dtype,
        shape,
        window=max_context_length(hf_config, config),
        bytes_per_token=bytes_per_token(shape.layers, cache_dtype),
        weight_bytes=weight_bytes(shape, weight_dtype, config.quantization),
    )


def _kept_as(hf_config: Any, config: EngineConfig, dtype: torch.dtype, kind: Device) -> torch.dtype:
    """As `loader._load_network` finds it: where a CPU computes in float32, weights of 16 bits stay as they are."""
    if kind == "gpu" or config.quantization == "int8" or dtype != torch.float32:
        return dtype
    path = locate(config.model)
    if path is not None and path.is_file():  # the weights that a GGUF file is converted into
        return dtype
    if files := _whole_files(path, config):
        return stored_dtype(files) or dtype
    stated = getattr(hf_config, "dtype", None)
    return stated if stated in (torch.bfloat16, torch.float16) else dtype


def _whole_files(path: Path | None, config: EngineConfig) -> list[Path]:
    """A folder's weights; none where some are missing or cut short, as of a hub's model none are here."""
    try:
        files = [] if path is None else weight_files(path, config)
        for file in files:
            check_whole(file, config)
    except SettingError:
        return []
    return files


def _room(config: EngineConfig, model: _Model, device_bytes: int, kind: Device) -> _Room:
    """As the engine finds it, but that activations are estimated and the runtime's memory is a usual value."""
    limits, on_gpu = batch_limits(config, _torch_device(kind), model.window), kind == "gpu"
    known = (model.hf_config, model.shape.vocab_size, limits, model.dtype)
    graphs = estimated_graphs(*known) if on_gpu and not config.enforce_eager else 0
    activations = estimated_activations(*known, on_gpu=on_gpu) + graphs
    # A CPU's memory is measured once the weights are loaded.
    total = device_bytes if on_gpu else max(0, device_bytes - model.weight_bytes)
    memory = Memory(total, activations + (model.weight_bytes + RUNTIME_BYTES if on_gpu else 0), on_gpu)
    _check_device(config, model, memory, device_bytes, activations)
    blocks = cache_blocks(config, memory, model.bytes_per_token * config.block_size, model.window, limits)
    return _Room(activations, blocks, usable_context_length(config, model.window, blocks), limits.max_num_seqs)


def _check_device(config: EngineConfig, model: _Model, memory: Memory, device_bytes: int, activations: int) -> None:
    """Refuse a device in which no share and no setting of the cache makes room for it."""
    tokens = least_tokens(config, model.window)
    cache = -(-tokens // config.block_size) * config.block_size * model.bytes_per_token
    if memory.free >= cache:
        return
    cache = max(cache, int((config.kv_cache_memory_gib or 0) * GIB))
    is_own = config.kv_cache_memory_gib is None
    if memory.on_gpu:
        least = (memory.held + cache) / (config.gpu_memory_utilization if is_own else 1)
    else:
        least = model.weight_bytes + max(memory.held + cache, cache / CPU_CACHE_SHARE if is_own else 0)
    parts = [("weights", model.weight_bytes), ("activations", activations), ("the KV cache", cache)]
    parts += [("the runtime", RUNTIME_BYTES)] if memory.on_gpu else []
    needs = ", ".join(f"{name} {size / GIB:.3g} GiB" for name, size in parts)
    problem = f"is too small: {needs}; set it to at least {math.ceil(least / GIB * 100) / 100:g}GiB"
    if memory.total > memory.held - activations:  # else not even the weights have room
        problem += f", or {FEWER_ACTIVATIONS}"
    raise SettingError("--device-memory", f"{device_bytes / GIB:.3g}GiB", problem)


def _torch_device(kind: Device) -> torch.device:
    return torch.device("cuda" if kind == "gpu" else "cpu")


def _configuration(config: EngineConfig) -> Any:
    """transformers' configuration of the model; a GGUF file is not converted and a hub's weights are not fetched."""
    path = locate(config.model)
    if path is not None and path.is_file():
        return read_gguf_config(config)
    return read_config(resolve_config(config), config)


def _usual_lengths(max_model_len: int) -> list[int]:
    return [n for n in (1024, 4096, 16384, 65536) if n < max_model_len] + [max_model_len]
