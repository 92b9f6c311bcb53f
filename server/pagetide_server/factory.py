"""Builds an EngineCore from an EngineConfig: the one place that joins scheduler, model, sampler and grammars."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pagetide_spec.config import GIB, EngineConfig

from .engine.core import EngineCore
from .engine.sampling.compiler import StructureCompiler
from .engine.sampling.sampler import Sampler
from .engine.scheduler import Scheduler, SchedulerConfig
from .model.limits import batch_limits
from .model.loader import LoadedModel, load
from .model.memory import bytes_per_token, gib_for, kv_blocks, usable_context_length
from .model.recording import record, recorded_bytes, recorder_for
from .model.runner import Runner
from .model.speed import Speed, measure
from .model.weights import dtype_name
from .process_memory import keep_freed, return_freed
from .text.tokenizer import Tokenizer
from .warm_up import warm_up
from .wire.messages import Ready

log = logging.getLogger(__name__)


def create_core(
    config: EngineConfig,
    progress: Callable[[str, float], None],
    tokenizer: Tokenizer | None = None,
    warm: bool = True,
) -> EngineCore:
    """Load the model and set up the engine around it; `progress(stage, fraction)` is called with the progress.

    `tokenizer` is the model's own, where the caller has loaded it already. `warm`: make ready at once for
    structured answers (a second, beside the first requests) and for sampled tokens (36 MB for 262,144 tokens); else
    when the first one is asked for.

    Raises:
        SettingError: a setting that this model or machine cannot fulfil.
        PagetideError: the model cannot be loaded.
    """
    # Before the weights, so that an unavailable one is reported at once.
    tokenizer = tokenizer or Tokenizer.load(config, progress)
    loaded = _loaded(config, progress, tokenizer)
    limits, runner = _placed(config, loaded, progress)
    log_limits(config, loaded, limits)
    ready = ready_of(limits, loaded)
    eos = frozenset(loaded.eos_token_ids)
    compiler = StructureCompiler(tokenizer, eos)
    sampler = Sampler(loaded.vocab_size, loaded.device, eos_token_ids=eos, seed=config.seed)
    if warm:
        compiler.warm_up()
        sampler.warm_up()
    schedules_ahead = async_scheduling(loaded)
    if schedules_ahead:
        progress("compiling kernels", 0.0)
        warm_up(runner, sampler, limits.max_model_len)
    return EngineCore(
        Scheduler(limits, _log_block_event if config.log_blocks else None),
        runner,
        sampler,
        compiler,
        ready,
        async_scheduling=schedules_ahead,
    )


def _loaded(config: EngineConfig, progress: Callable[[str, float], None], tokenizer: Tokenizer) -> LoadedModel:
    loaded = load(config, progress)
    if loaded.device.type == "cpu":
        return_freed()
        keep_freed()
    if loaded.eos_token_ids:
        return loaded
    # The model states no end: without one, no structured answer would end.
    return dataclasses.replace(loaded, eos_token_ids=tuple(sorted(tokenizer.eos_token_ids)))


def async_scheduling(loaded: LoadedModel) -> bool:
    """Whether a step is begun before the tokens of the one before are known: a CPU has nothing to do meanwhile."""
    return loaded.device.type == "cuda" and loaded.attention_name == "paged-triton"


def _placed(
    config: EngineConfig, loaded: LoadedModel, progress: Callable[[str, float], None]
) -> tuple[SchedulerConfig, Runner]:
    """Share out the memory, take it, and record decode steps if that is of use."""
    speed, graph_bytes = measure(loaded), None
    make_recorder = recorder_for(config, loaded)
    if make_recorder:
        most = batch_limits(config, loaded.device, loaded.max_model_len).max_num_seqs
        graph_bytes = recorded_bytes(config, loaded, most, make_recorder())
    limits = scheduler_config(config, loaded, speed, graph_bytes or 0)
    runner = Runner(loaded, limits.num_blocks, limits.num_swap_blocks, limits.block_size)
    if make_recorder and graph_bytes is not None:
        record(runner, limits.max_num_seqs, limits.max_model_len, make_recorder(), progress)
    return limits, runner


def scheduler_config(config: EngineConfig, loaded: LoadedModel, speed: Speed, graph_bytes: int = 0) -> SchedulerConfig:
    """The scheduler's settings: those of `config`, completed by what model, device and memory allow.

    `graph_bytes` are what recorded decode steps will take of the device.

    Raises:
        SettingError: there is no room for what was asked.
    """
    batch = batch_limits(config, loaded.device, loaded.max_model_len)
    num_blocks, num_swap_blocks = kv_blocks(config, loaded, graph_bytes)
    return SchedulerConfig(
        block_size=config.block_size,
        num_blocks=num_blocks,
        num_swap_blocks=num_swap_blocks,
        max_num_seqs=batch.max_num_seqs,
        max_num_batched_tokens=batch.max_num_batched_tokens,
        max_model_len=usable_context_length(config, loaded.max_model_len, num_blocks),
        enable_prefix_caching=config.enable_prefix_caching,
        enable_chunked_prefill=config.enable_chunked_prefill,
        policy=config.scheduling_policy,
        preemption_mode=config.preemption_mode,
        max_queue_len=config.max_queue_len,
        vocab_size=loaded.vocab_size,
        eos_token_ids=frozenset(loaded.eos_token_ids),
        kv_bytes_per_token=bytes_per_token(loaded.layers, loaded.cache_dtype),
        swap_bytes_per_second=speed.swap_bytes_per_second,
        recompute_tokens_per_second=speed.recompute_tokens_per_second,
    )


def log_limits(config: EngineConfig, loaded: LoadedModel, limits: SchedulerConfig) -> None:
    """Say what the engine was set up with, and what in it may surprise."""
    log.info(
        "KV cache: %d blocks of %d tokens (%.2f GiB of %s), swap space %d blocks; copying %.3g bytes/s, "
        "computing %.3g tokens/s",
        limits.num_blocks,
        limits.block_size,
        limits.capacity_tokens * limits.kv_bytes_per_token / GIB,
        dtype_name(loaded.cache_dtype),
        limits.num_swap_blocks,
        limits.swap_bytes_per_second,
        limits.recompute_tokens_per_second,
    )
    token_bytes = bytes_per_token(loaded.layers, loaded.cache_dtype)
    has_share = loaded.device.type == "cuda" and config.kv_cache_memory_gib is None
    if limits.max_model_len < loaded.max_model_len:
        log.warning(
            "max_model_len is %d, which is all that the KV cache holds; the model allows %d: "
            "raise kv_cache_memory_gib to at least %g%s for it",
            limits.max_model_len,
            loaded.max_model_len,
            gib_for(loaded.max_model_len, limits.block_size, limits.block_size * token_bytes),
            ", or gpu_memory_utilization," if has_share else "",
        )
    if not limits.enable_chunked_prefill and limits.max_num_batched_tokens < limits.max_model_len:
        log.warning(
            "prompts of more than %d tokens will be refused, since enable_chunked_prefill is off: "
            "raise max_num_batched_tokens to %d, or turn enable_chunked_prefill on",
            limits.max_num_batched_tokens,
            limits.max_model_len,
        )


def ready_of(limits: SchedulerConfig, loaded: LoadedModel) -> Ready:
    """What the API process gets to know of the model and its limits."""
    return Ready(
        max_model_len=limits.max_model_len,
        vocab_size=loaded.vocab_size,
        eos_token_ids=sorted(loaded.eos_token_ids),
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
        num_swap_blocks=limits.num_swap_blocks,
        dtype=dtype_name(loaded.dtype),
        kv_cache_dtype=dtype_name(loaded.cache_dtype),
        device=_device_name(loaded.device),
        device_type="cpu" if loaded.device.type == "cpu" else "cuda",
        attention=loaded.attention_name,
        step_seconds=limits.max_num_batched_tokens / limits.recompute_tokens_per_second,
    )


def _device_name(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)


def _log_block_event(event: str, request_id: str, index: int, block_ids: Sequence[int]) -> None:
    fields: dict[str, Any] = {"request_id": request_id, "index": index, "blocks": list(block_ids)}
    log.info("%s blocks %s of request %s, answer %d", event, fields["blocks"], request_id, index, extra=fields)
