"""The network with its weights: loaded, checked, and moved to its device."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from pagetide_spec.config import GIB, EngineConfig
from pagetide_spec.errors import PagetideError, SettingError

from ..checkpoint.files import Progress, weight_files
from .attention import ATTENTION_NAME, relay
from .network import Shape, expect_no_padding

# Where the name of a weight counts the layers: model.layers.7.mlp.up_proj.weight.
_LAYER = re.compile(r"(?<=layers)\.\d+\.")
_SMALLER = "set dtype to a smaller type, take a quantized model or a larger GPU (`pagetide plan` shows what fits)"


def dtype_name(dtype: torch.dtype) -> str:
    """`float32`, as the setting `dtype` spells it."""
    return str(dtype).removeprefix("torch.")


@contextlib.contextmanager
def reported_weights(progress: Progress) -> Iterator[None]:
    """Report to `progress` each weight that transformers loads, instead of its own bar."""
    from transformers.utils import logging

    def report(weights: Any) -> Iterator[Any]:
        for i, weight in enumerate(weights):
            progress("loading weights", i / len(weights))
            yield weight

    def hook(factory: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        counted = args and hasattr(args[0], "__len__") and kwargs.get("desc") == "Loading weights"
        return report(args[0]) if counted else factory(*args, **kwargs)

    before = logging.set_tqdm_hook(hook)
    try:
        progress("loading weights", 0.0)
        yield
        progress("loading weights", 1.0)
    finally:
        logging.set_tqdm_hook(before)


def load_weights(folder: Path, config: EngineConfig, dtype: torch.dtype, device: torch.device, shape: Shape) -> Any:
    """The network in `folder`, whole, on its device. (On a CPU its weights may still be the mapped file.)

    Raises:
        SettingError: its weights are incomplete, or too large for the device.
        PagetideError: transformers cannot load them.
    """
    from transformers import AutoModelForCausalLM

    _check_fits(folder, config, dtype, device, shape.parameters)
    from_pretrained: Any = AutoModelForCausalLM.from_pretrained
    try:
        network, info = from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=ATTENTION_NAME,
            trust_remote_code=config.trust_remote_code,
            output_loading_info=True,
            # We say ourselves which ones.
            ignore_mismatched_sizes=True,
            use_safetensors=True,
            local_files_only=True,
        )
    except Exception as error:  # also of a library that a kind of quantization needs
        line = " ".join(str(error).split())[:300]
        raise PagetideError(f"model: {config.model!r}: loading its weights failed: {line}") from error
    _check_complete(info, network, config)
    expect_no_padding(network)
    if shape.relayed:
        relay(network)
    return _moved(network, device, config).eval().requires_grad_(False)


def _check_fits(folder: Path, config: EngineConfig, dtype: torch.dtype, device: torch.device, parameters: int) -> None:
    """Refuse a model whose weights alone are larger than what is free on the GPU, before they are read.

    Of weights that are quantized, or stored in another type, the lesser size is taken: more is found when they move.
    """
    if device.type != "cuda":
        return
    stored = sum(path.stat().st_size for path in weight_files(folder, config))
    least, (free, _) = min(stored, parameters * dtype.itemsize), torch.cuda.mem_get_info(device)
    if least > free:
        problem = (
            f"its weights take {least / GIB:.1f} GiB in {dtype_name(dtype)}, the GPU has {free / GIB:.1f} GiB free"
        )
        raise SettingError("model", config.model, f"{problem}; {_SMALLER}")


def _moved(network: Any, device: torch.device, config: EngineConfig) -> Any:
    try:
        return network.to(device)
    except torch.OutOfMemoryError as error:
        raise SettingError(
            "model", config.model, f"its weights do not fit into the GPU's memory; {_SMALLER}"
        ) from error


def _check_complete(info: dict[str, Any], network: Any, config: EngineConfig) -> None:
    missing = sorted(info["missing_keys"])
    others = sorted(key[0] if isinstance(key, tuple) else key for key in info["mismatched_keys"])
    surplus = _surplus_layers(info["unexpected_keys"], [name for name, _ in network.named_parameters()])
    for names, what in (
        (missing, "are missing in its weights"),
        (others, "have another size than config.json says"),
        (surplus, "belong to layers that config.json does not count"),
    ):
        if names:
            some = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
            raise SettingError("model", config.model, f"{len(names)} tensors {what}: {some}")


def _surplus_layers(unexpected: Iterable[str], own: Iterable[str]) -> list[str]:
    """Weights of further layers of a stack that the network has; those of other parts, such as vision, are no fault."""
    stacks = {_LAYER.split(name)[0] for name in own if _LAYER.search(name)}
    return sorted(name for name in unexpected if _LAYER.search(name) and _LAYER.split(name)[0] in stacks)
