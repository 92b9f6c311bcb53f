"""`pagetide plan MODEL`: what a model needs and how many requests fit, without loading its weights."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagetide_spec.command_line import Parser
from pagetide_spec.config import GIB, EngineConfig
from pagetide_spec.errors import PagetideError, SettingError
from pagetide_spec.flags import add_flags, config_from, in_flags

from .vllm_flags import VLLM_FLAGS

if TYPE_CHECKING:
    from .model.requirements import Device, ModelPlan

DESCRIPTION = """\
What a model needs and how many requests fit, without loading its weights. It counts for a GPU, on whatever machine it
runs; with --device cpu for a machine without one."""
EPILOG = """\
The other flags of `pagetide serve` are accepted, so that a server's command line may follow; they change no figure."""
# Settings that change a figure.
SHOWN = (
    "revision", "dtype", "trust_remote_code", "max_model_len", "quantization",
    "block_size", "gpu_memory_utilization", "kv_cache_memory_gib",
    "max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "enforce_eager",
)  # fmt: skip
GPU_MEMORY = "80GiB"
_ASSUMED = " (assumed; see --device-memory)"
UNITS = {
    **{"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12},
    **{"KI": 1 << 10, "MI": 1 << 20, "GI": GIB, "TI": 1 << 40},
}


def main(argv: Sequence[str]) -> int:
    """Print the plan; exit code 2 for a wrong setting or a model without room."""
    flags = vars(_parser().parse_args(argv))
    device, memory, lengths, as_json = (flags.pop(name) for name in ("device", "device_memory", "lengths", "json"))
    try:
        plan = _plan(config_from(flags, os.environ), device, memory, parse_lengths(lengths))
    except PagetideError as error:
        print(f"pagetide plan: {in_flags(str(error))}", file=sys.stderr)
        return 2
    assumed = memory is None and plan.device == "gpu"
    print(json.dumps(dataclasses.asdict(plan), indent=2) if as_json else describe(plan, assumed))
    return 0


def _parser() -> Parser:
    parser = Parser("pagetide plan", VLLM_FLAGS, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("model", metavar="MODEL", help="folder, GGUF file or hub id")
    parser.add_argument(
        "--device", choices=["gpu", "cpu"], help="what to count for (default: gpu, but cpu with --quantization int8)"
    )
    memory = f"memory of the GPU (default: {GPU_MEMORY}), or what is free on the CPU's machine (default: here, now)"
    parser.add_argument("--device-memory", metavar="SIZE", help=memory)
    parser.add_argument("--lengths", metavar="N,N", help="lengths to show, in tokens (default: 1024 to max_model_len)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_flags(parser, SHOWN)
    return parser


def _plan(config: EngineConfig, asked: Device | None, memory: str | None, lengths: list[int] | None) -> ModelPlan:
    size = None if memory is None else parse_size(memory)  # what is wrong with it is reported before torch is loaded
    from .model.requirements import device_of, make_plan

    device = device_of(config, asked)
    if size is None:
        size = parse_size(GPU_MEMORY) if device == "gpu" else _free_here()
    return make_plan(config, size, device, lengths)


def _free_here() -> int:
    from .model.host_memory import available_bytes

    try:
        return available_bytes()
    except OSError:  # other systems than Linux have no /proc
        raise SettingError("--device-memory", None, "what is free here is unknown; set it") from None


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


def describe(plan: ModelPlan, assumed: bool = False) -> str:
    """The plan as a table; `assumed`: nobody has said how much memory the device has."""
    gib = [
        f"{n / GIB:.2f} GiB" for n in (plan.device_bytes, plan.weight_bytes, plan.activation_bytes, plan.runtime_bytes)
    ]
    shorter = f", all that the cache holds of the model's {plan.model_window:,}"
    shorter = shorter if plan.max_model_len < plan.model_window else ""
    kept = f"int8 and {plan.dtype}" if plan.quantization == "int8" else plan.weight_dtype
    on_cpu = plan.device == "cpu"
    rows = [
        ("model", f"{plan.model} ({plan.architecture}, {plan.layers} layers)"),
        ("device memory", f"{gib[0]} {'free of a CPU' if on_cpu else 'of a GPU'}{_ASSUMED if assumed else ''}"),
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
