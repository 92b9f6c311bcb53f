"""`pagetide plan MODEL`: what a model needs and how many requests fit, without loading its weights."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from pagetide_spec.command_line import Parser
from pagetide_spec.config import GIB, EngineConfig
from pagetide_spec.errors import PagetideError, SettingError
from pagetide_spec.flags import add_flags, config_from

UNITS = {
    **{"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12},
    **{"KI": 1 << 10, "MI": 1 << 20, "GI": GIB, "TI": 1 << 40},
}
# CUDA's context and its libraries' work space.
RUNTIME_BYTES = 700 << 20


@dataclasses.dataclass(frozen=True)
class ModelPlan:
    """Sizes in bytes; `concurrency` maps a length in tokens to the sequences of that length that run at once.

    `max_model_len` is what the engine serves, `model_window` what was asked for or the model allows.

    `activation_bytes` is an estimate, `runtime_bytes` a usual value; all else is exact, but that weights which are
    quantized in the model's own files are counted as if they were not.
    """

    model: str
    architecture: str
    dtype: str
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


def main(argv: Sequence[str]) -> int:
    """Print the plan; exit code 2 for a wrong setting or a model without room."""
    parser = Parser("pagetide plan", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="folder, GGUF file or hub id")
    parser.add_argument("--device-memory", metavar="SIZE", default="80GiB", help="memory of the device (default 80GiB)")
    parser.add_argument("--lengths", metavar="N,N", help="lengths to show, in tokens (default: 1024 to max_model_len)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_flags(parser)
    flags = vars(parser.parse_args(argv))
    memory, lengths, as_json = (flags.pop(name) for name in ("device_memory", "lengths", "json"))
    try:
        plan = make_plan(config_from(flags, os.environ), parse_size(memory), parse_lengths(lengths))
    except PagetideError as error:
        print(f"pagetide plan: {error}", file=sys.stderr)
        return 2
    print(json.dumps(dataclasses.asdict(plan), indent=2) if as_json else describe(plan))
    return 0


def parse_size(text: str) -> int:
    """`80GiB`, `80Gi`, `24GB` or a number of bytes, in bytes.

    Raises:
        SettingError: it is no size.
    """
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]+)?)\s*([KMGT]?I?)B?", text.strip().upper())
    if not match or match[2] not in UNITS or not float(match[1]):
        raise SettingError("--device-memory", text, "must be a size such as 80GiB")
    if not match[2] and float(match[1]) < GIB:
        raise SettingError("--device-memory", text, f"is a number of bytes; did you mean {text.strip()}GiB?")
    return int(float(match[1]) * UNITS[match[2]])


def parse_lengths(text: str | None) -> list[int] | None:
    """`2048,8192` as numbers.

    Raises:
        SettingError: they are none.
    """
    if text is None:
        return None
    parts = text.split(",")
    if not all(re.fullmatch(r"\s*0*[1-9][0-9]{0,17}\s*", p) for p in parts):
        raise SettingError("--lengths", text, "must be token counts such as 2048,8192")
    return [int(p) for p in parts]


def make_plan(config: EngineConfig, device_bytes: int, lengths: list[int] | None = None) -> ModelPlan:
    """Work out the plan of a configuration on a GPU of `device_bytes`, or with int8 on a CPU with that much free.

    Raises:
        SettingError: the model cannot be served or has no room; says what to change.
    """
    from .model.weights import dtype_name

    model = _examined(config)
    room = _room(config, model, device_bytes)
    return ModelPlan(
        model=config.model,
        architecture=(getattr(model.hf_config, "architectures", None) or [model.hf_config.model_type])[0],
        dtype=dtype_name(model.dtype),
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
        runtime_bytes=RUNTIME_BYTES if _device_type(config) == "cuda" else 0,
    )


@dataclasses.dataclass(frozen=True)
class _Model:
    """What is known of a model without its weights; types and `shape` are of torch and of model/network.py."""

    hf_config: Any
    dtype: Any
    cache_dtype: Any
    shape: Any
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


def _examined(config: EngineConfig) -> _Model:
    import torch

    from .model.loader import cache_dtype_of, dtype_of, max_context_length
    from .model.memory import bytes_per_token, weight_bytes
    from .model.network import examine

    hf_config, device = _configuration(config), torch.device(_device_type(config))
    dtype, shape = dtype_of(hf_config, config, device), examine(hf_config, config)
    kept = cache_dtype_of(dtype, config)
    sizes = bytes_per_token(shape.layers, kept), weight_bytes(shape, dtype, config.quantization)
    return _Model(hf_config, dtype, kept, shape, max_context_length(hf_config, config), *sizes)


def _room(config: EngineConfig, model: _Model, device_bytes: int) -> _Room:
    """As the engine finds it, but that activations are estimated and the runtime's memory is a usual value."""
    import torch

    from .model.limits import batch_limits
    from .model.memory import Memory, cache_blocks, usable_context_length
    from .model.profile import estimated_activations, estimated_graphs

    device = torch.device(_device_type(config))
    limits, on_gpu = batch_limits(config, device, model.window), device.type == "cuda"
    known = (model.hf_config, model.shape.vocab_size, limits, model.dtype)
    graphs = estimated_graphs(*known) if on_gpu and not config.enforce_eager else 0
    activations = estimated_activations(*known, on_gpu=on_gpu) + graphs
    # A CPU's memory is measured once the weights are loaded.
    total = device_bytes if on_gpu else max(0, device_bytes - model.weight_bytes)
    memory = Memory(total, activations + (model.weight_bytes + RUNTIME_BYTES if on_gpu else 0), on_gpu)
    blocks = cache_blocks(config, memory, model.bytes_per_token * config.block_size, model.window, limits)
    return _Room(activations, blocks, usable_context_length(config, model.window, blocks), limits.max_num_seqs)


def _device_type(config: EngineConfig) -> str:
    """What the engine would run on: a GPU, but with a quantization that is built for the CPU only."""
    return "cpu" if config.quantization == "int8" else "cuda"


def _configuration(config: EngineConfig) -> Any:
    """transformers' configuration of the model; a GGUF file is not converted and a hub's weights are not fetched."""
    from .checkpoint.files import locate, resolve_config
    from .model.loader import read_config

    path = locate(config.model)
    if path is not None and path.is_file():
        from .model.gguf.convert import read_gguf_config

        return read_gguf_config(config)
    return read_config(resolve_config(config), config)


def _usual_lengths(max_model_len: int) -> list[int]:
    return [n for n in (1024, 4096, 16384, 65536) if n < max_model_len] + [max_model_len]


def describe(plan: ModelPlan) -> str:
    """The plan as a table."""
    gib = [
        f"{n / GIB:.2f} GiB" for n in (plan.device_bytes, plan.weight_bytes, plan.activation_bytes, plan.runtime_bytes)
    ]
    shorter = f", all that the cache holds of the model's {plan.model_window:,}"
    shorter = shorter if plan.max_model_len < plan.model_window else ""
    kept = f"int8 and {plan.dtype}" if plan.quantization == "int8" else plan.dtype
    on_cpu = plan.quantization == "int8"  # no GPU runs weights that are rounded at start
    rows = [
        ("model", f"{plan.model} ({plan.architecture}, {plan.layers} layers)"),
        ("device memory", f"{gib[0]} {'free of a CPU' if on_cpu else 'of a GPU'}"),
        ("weights", f"{gib[1]} ({plan.parameters:,} parameters, {kept})"),
        ("activations", f"{gib[2]} (estimated{'' if on_cpu else '; the engine measures them'})"),
        *(() if on_cpu else (("runtime", f"{gib[3]} (usual)"),)),
        ("KV cache", f"{plan.cache_bytes / GIB:.2f} GiB of {plan.cache_dtype}, {plan.bytes_per_token:,} bytes a token"),
        ("blocks", f"{plan.blocks:,} of {plan.block_size} tokens: {plan.blocks * plan.block_size:,} tokens"),
        ("window", f"{plan.max_model_len:,} tokens{shorter}"),
        *(
            ("concurrency", f"{count:,} sequence{'' if count == 1 else 's'} of {length:,} tokens")
            for length, count in plan.concurrency.items()
        ),
    ]
    if plan.windowed_layers:
        rows.append(("note", f"{plan.windowed_layers} layers have a sliding window; they keep all blocks nevertheless"))
    return "\n".join(f"{name:14} {text}" for name, text in rows)
