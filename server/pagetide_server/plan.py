"""`pagetide plan MODEL`: what a model needs and how many requests fit, without loading its weights."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pagetide_spec.command_line import Parser
from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import PagetideError, SettingError
from pagetide_spec.flags import add_flags, config_from

GIB = 1 << 30
UNITS = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "KI": 1 << 10,
    "MI": 1 << 20,
    "GI": 1 << 30,
    "TI": 1 << 40,
}
# CUDA's context and its libraries' work space.
RUNTIME_BYTES = 700 << 20


@dataclasses.dataclass(frozen=True)
class ModelPlan:
    """Sizes in bytes; `concurrency` maps a length in tokens to the sequences of that length that fit at once.

    `max_model_len` is what the engine serves, `model_window` what was asked for or the model allows.

    `activation_bytes` is an estimate, `runtime_bytes` a usual value; all else is exact.
    """

    model: str
    architecture: str
    dtype: str
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
    parser.add_argument("--lengths", metavar="N,N", help="lengths to show, in tokens (default: 1024 to the window)")
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
    """Work out the plan of a configuration on a GPU of `device_bytes`.

    Raises:
        SettingError: the model cannot be served or has no room; says what to change.
    """
    import torch

    from .model.loader import dtype_of, window
    from .model.memory import batch_limits, bytes_per_token, check_room, usable_window, useful_blocks
    from .model.network import examine

    device = torch.device("cuda")
    hf_config = _configuration(config)
    dtype, shape = dtype_of(hf_config, config, device), examine(hf_config, config)
    max_model_len = window(hf_config, config)
    token, weights = bytes_per_token(shape.layers, dtype), shape.parameters * dtype.itemsize
    limits = batch_limits(config, device, max_model_len)
    activations = _activations(hf_config, shape.vocab_size, limits, dtype.itemsize)
    blocks = _room(config, device_bytes, weights + activations) // (token * config.block_size)
    if config.kv_cache_memory_gib is None:
        blocks = min(blocks, useful_blocks(config, limits, max_model_len))
    check_room(config, blocks, token * config.block_size, max_model_len, device_bytes)
    usable = usable_window(config, max_model_len, blocks)
    if lengths and max(lengths) > usable:
        raise SettingError("--lengths", max(lengths), f"a sequence has at most {usable} tokens here")
    return ModelPlan(
        model=config.model,
        architecture=(getattr(hf_config, "architectures", None) or [hf_config.model_type])[0],
        dtype=str(dtype).removeprefix("torch."),
        parameters=shape.parameters,
        weight_bytes=weights,
        layers=len(shape.layers),
        windowed_layers=sum(layer.sliding_window is not None for layer in shape.layers),
        bytes_per_token=token,
        max_model_len=usable,
        model_window=max_model_len,
        device_bytes=device_bytes,
        activation_bytes=activations,
        block_size=config.block_size,
        blocks=blocks,
        concurrency={n: blocks // -(-n // config.block_size) for n in lengths or _usual_lengths(usable)},
    )


def _room(config: EngineConfig, device_bytes: int, held: int) -> int:
    """Bytes for the KV cache beside `held` bytes of weights and activations; below 0 where these have none."""
    from .model.memory import asked_bytes

    if config.kv_cache_memory_gib is not None:
        return asked_bytes(config, device_bytes - held - RUNTIME_BYTES)
    return int(device_bytes * config.gpu_memory_utilization) - held - RUNTIME_BYTES


def _configuration(config: EngineConfig) -> Any:
    """transformers' configuration of the model; a GGUF file is not converted and a hub's weights are not fetched."""
    from .checkpoint.files import resolve_config
    from .model.loader import read_config

    if Path(config.model).expanduser().is_file():
        from .model.gguf.convert import read_gguf_config

        return read_gguf_config(config)
    return read_config(resolve_config(config), config)


def _activations(hf_config: Any, vocab: int, limits: Any, itemsize: int) -> int:
    """Estimate for the greatest step: of each token the residual stream, its norms, query, keys, values and the gated
    inner width, of each sequence three rows of float32 logits, and what sampling takes whatever the batch.
    """
    from .model.profile import sampler_bytes

    text = hf_config.get_text_config()
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    per_token = (8 * text.hidden_size + 3 * inner) * itemsize
    return int(limits.max_num_batched_tokens * per_token + 3 * limits.max_num_seqs * vocab * 4 + sampler_bytes(vocab))


def _usual_lengths(max_model_len: int) -> list[int]:
    return [n for n in (1024, 4096, 16384, 65536) if n < max_model_len] + [max_model_len]


def describe(plan: ModelPlan) -> str:
    """The plan as a table."""
    gib = [
        f"{n / GIB:.2f} GiB" for n in (plan.device_bytes, plan.weight_bytes, plan.activation_bytes, plan.runtime_bytes)
    ]
    shorter = f", all that the cache holds of the model's {plan.model_window:,}"
    shorter = shorter if plan.max_model_len < plan.model_window else ""
    rows = [
        ("model", f"{plan.model} ({plan.architecture}, {plan.layers} layers)"),
        ("device memory", gib[0]),
        ("weights", f"{gib[1]} ({plan.parameters:,} parameters, {plan.dtype})"),
        ("activations", f"{gib[2]} (estimated; the engine measures them)"),
        ("runtime", f"{gib[3]} (usual)"),
        ("KV cache", f"{plan.cache_bytes / GIB:.2f} GiB, {plan.bytes_per_token:,} bytes a token"),
        ("blocks", f"{plan.blocks:,} of {plan.block_size} tokens: {plan.blocks * plan.block_size:,} tokens"),
        ("window", f"{plan.max_model_len:,} tokens{shorter}"),
        *(("concurrency", f"{count:,} sequences of {length:,} tokens") for length, count in plan.concurrency.items()),
    ]
    if plan.windowed_layers:
        rows.append(("note", f"{plan.windowed_layers} layers have a sliding window; they keep all blocks nevertheless"))
    return "\n".join(f"{name:14} {text}" for name, text in rows)
