"""Load a network with its weights, ready for the runner."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import torch

from pagetide_kernels import dispatch
from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import SettingError, shorten

from ..checkpoint.files import Progress, check_whole, eos_token_ids, read_json, resolve, silent, weight_files
from .cpu_network import CpuNetwork, cpu_network
from .devices import find_device
from .light_imports import import_transformers
from .mapped import own_weights
from .network import Layer, Shape, examine
from .stored import restore_computed, stored_dtype
from .swapping import use_cpu_ops, use_gpu_ops
from .weights import load_weights, reported_weights

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A network on its device, in inference mode, and what the engine must know of it.

    `dtype` is that of the layers' activations, `cache_dtype` that of the KV cache; `vocab_size` is the width of the
    logits, `layers` the attention layers in order, `attention_name` what the metric `engine_info` shows,
    `computed_parameters` how many weights a token is multiplied with before its logits. `cpu` runs the network without
    transformers' forward pass, where that can be.
    """

    network: Any
    hf_config: Any
    device: torch.device
    dtype: torch.dtype
    cache_dtype: torch.dtype
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    attention_name: str
    layers: list[Layer]
    computed_parameters: int
    cpu: CpuNetwork | None = None


def load(config: EngineConfig, progress: Progress = silent) -> LoadedModel:
    """Find, check and load the model of `config`; `progress(stage, fraction)` is called with the progress.

    Raises:
        SettingError: the model is missing, incomplete or cannot be served; says what to change.
        PagetideError: it cannot be downloaded or converted, or there is a GPU that torch cannot use.
    """
    device = find_device()
    progress("preparing kernels (a first start compiles them)", 0.0)
    kernels = _kernels(device)
    progress("loading libraries", 0.0)
    import_transformers(needs_triton=device.type == "cuda" or kernels == "triton")
    folder = resolve(config, progress)
    hf_config = read_config(folder, config)
    check_quantization(hf_config, config, device)
    max_model_len = max_context_length(hf_config, config)
    for path in weight_files(folder, config):
        check_whole(path, config)
    progress("building the network", 0.0)
    shape = examine(hf_config, config)
    dtype = dtype_of(hf_config, config, device)
    packs = device.type == "cpu" and (kernels == "cpp" or config.quantization == "int8")
    with reported_weights(progress):
        network, kept_as = _load_network(folder, config, device, shape, dtype, may_stay_narrow=packs)
    if kernels == "triton" and device.type == "cuda":
        use_gpu_ops(network)
    if packs:
        use_cpu_ops(network, shape, config, dtype, kept_as, progress)
    elif device.type == "cpu":
        own_weights(network)
    return LoadedModel(
        network=network,
        hf_config=hf_config,
        device=device,
        dtype=dtype,
        cache_dtype=cache_dtype_of(dtype, config),
        max_model_len=max_model_len,
        vocab_size=shape.vocab_size,
        eos_token_ids=_eos_token_ids(folder, hf_config, config, shape.vocab_size),
        attention_name=f"paged-{kernels}",
        layers=shape.layers,
        computed_parameters=shape.parameters - shape.embedded,
        cpu=cpu_network(network, max_model_len) if packs else None,
    )


def read_config(folder: Path, config: EngineConfig) -> Any:
    """transformers' configuration of the model in `folder`.

    Raises:
        SettingError: there is none, or transformers does not know the model.
    """
    from transformers import AutoConfig

    stated = read_json(folder / "config.json", config.model)
    if "model_type" not in stated:
        raise SettingError("model", config.model, "config.json names no model_type")
    names = stated.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SettingError("model", config.model, "the architectures in config.json must be a list of names")
    if "auto_map" in stated and not config.trust_remote_code:
        from transformers import CONFIG_MAPPING

        if stated["model_type"] not in CONFIG_MAPPING:
            problem = "comes with its own Python code; set trust_remote_code if you trust it"
            raise SettingError("model", config.model, problem)
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=config.trust_remote_code)
    except Exception as error:  # it has errors of its own for wrong values, and others come from inside its checks
        line = " ".join(str(error).split())[:200]
        raise SettingError("model", config.model, f"transformers cannot read its config.json: {line}") from error


def check_quantization(hf_config: Any, config: EngineConfig, device: torch.device) -> None:
    """Refuse a quantization that the model's own weights or the device rule out.

    Raises:
        SettingError: says what to set instead.
    """
    stated = getattr(hf_config, "quantization_config", None)
    if config.quantization == "int8" and device.type != "cpu":
        problem = "is built for the CPU only; set it to auto"
        raise SettingError("quantization", config.quantization, problem)
    if stated is not None and config.quantization != "auto":
        method = stated.get("quant_method") if isinstance(stated, dict) else getattr(stated, "quant_method", None)
        problem = f"the model's weights are quantized ({method or 'config.json says so'}); set it to auto"
        raise SettingError("quantization", config.quantization, problem)


def max_context_length(hf_config: Any, config: EngineConfig) -> int:
    """The longest prompt plus answer.

    Raises:
        SettingError: `max_model_len` is more than the model allows.
    """
    text = hf_config.get_text_config()
    limit, why = _stated_window(text, config), "the model allows at most"
    if (steady := _steady_positions(text)) is not None and steady < (limit or steady + 1):
        limit, why = steady, "beyond it the model's positions change with the longest sequence of a batch; at most"
    if limit is None:
        if config.max_model_len is None:
            raise SettingError("max_model_len", None, "the model states no context length; set it")
        return config.max_model_len
    if config.max_model_len is not None and config.max_model_len > limit:
        raise SettingError("max_model_len", config.max_model_len, f"{why} {limit}")
    return config.max_model_len or limit


def _stated_window(text: Any, config: EngineConfig) -> int | None:
    limit = getattr(text, "max_position_embeddings", None)
    if limit is None or (type(limit) is int and limit > 0):
        return limit
    problem = f"the max_position_embeddings in its config.json must be a whole number above 0, not {shorten(limit)}"
    raise SettingError("model", config.model, problem)


def _steady_positions(text: Any) -> int | None:
    """Up to where a model's rotary positions do not depend on the batch, if they do at all.

    "longrope" takes other frequencies for the whole batch once one position lies beyond the length of the first
    training, so that an answer would change with other requests in the batch.
    """
    stated = getattr(text, "rope_parameters", None) or {}
    kinds = [stated, *(v for v in stated.values() if isinstance(v, dict))]
    lengths = [k.get("original_max_position_embeddings") for k in kinds if k.get("rope_type") == "longrope"]
    return min((n for n in lengths if n), default=None)


def dtype_of(hf_config: Any, config: EngineConfig, device: torch.device) -> torch.dtype:
    """The type of weights and activations; auto is float32 on a CPU and the model's own on a GPU."""
    if config.dtype != "auto":
        return getattr(torch, config.dtype)  # type: ignore[no-any-return]
    own = getattr(hf_config, "dtype", None)
    return own if device.type == "cuda" and isinstance(own, torch.dtype) else torch.float32


def cache_dtype_of(dtype: torch.dtype, config: EngineConfig) -> torch.dtype:
    """The type of the KV cache of a model of type `dtype`: that, but with int8 bfloat16 where none was asked for.

    Beside the error of 8 bits that of bfloat16 does not show, and it has the range of float32. float16 has not.
    """
    return torch.bfloat16 if config.quantization == "int8" and config.dtype == "auto" else dtype


def _eos_token_ids(folder: Path, hf_config: Any, config: EngineConfig, vocab_size: int) -> tuple[int, ...]:
    """Ids that end an answer; transformers' configuration has the defaults of the model's kind, too.

    Left out are ids without a logit, such as -1 for none: these never come.
    """
    generation = read_json(folder / "generation_config.json", config.model, missing_ok=True)
    stated = eos_token_ids(generation, hf_config.to_dict(), config.model)
    return tuple(i for i in stated if 0 <= i < vocab_size)


def _load_network(
    folder: Path, config: EngineConfig, device: torch.device, shape: Shape, dtype: torch.dtype, may_stay_narrow: bool
) -> tuple[Any, torch.dtype]:
    """The network, and the type of its weights: `dtype`, or where they may stay narrow the 16 bits of its files.

    `may_stay_narrow`: whether layers compute in float32 whatever type their weights have.
    """
    narrow = stored_dtype(weight_files(folder, config)) if may_stay_narrow and dtype == torch.float32 else None
    if narrow is not None:
        network = load_weights(folder, config, narrow, device, shape)
        if restore_computed(network):
            return network, narrow
    return load_weights(folder, config, dtype, device, shape), dtype


def _kernels(device: torch.device) -> str:
    """The name of the ops' implementation. What must be built for it is built now, not on a step."""
    try:
        choice = dispatch.choose(device)
    except dispatch.KernelChoiceError as error:
        raise SettingError(dispatch.VARIABLE, error.value, error.problem) from error
    is_slow = device.type == "cuda" and choice.name != "triton"
    log.log(
        logging.WARNING if is_slow else logging.INFO, "kernels on %s: %s (%s)", device.type, choice.name, choice.reason
    )
    return choice.name
