"""EngineConfig: the one place where an engine setting has its name, type, default, limits and help.

The command line, the environment, the resource's schema and the reference table are generated from it (`flags.py`,
`crd.py`), so none of them can disagree with it.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Literal

from .errors import SettingError
from .setting import Kind, checked, kind_of, setting, unknown_hint

# Bytes in the unit of the settings that end in `_gib`.
GIB = 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of one server. `None` means: decided from the model or the device when the engine starts.

    Raises:
        SettingError: a value has the wrong type or lies outside its limits; names the field.
    """

    # Model
    model: str = setting("", "Model: a local folder, a GGUF file, or an id on the Hugging Face hub.", "model")
    served_model_name: str | None = setting(
        None, "Name that clients give as `model`.", "model", unset="the model's own name"
    )
    revision: str | None = setting(None, "Branch, tag or commit on the hub.", "model", unset="main")
    tokenizer: str | None = setting(None, "Folder or hub id of another tokenizer.", "model", unset="the model's own")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = setting(
        "auto",
        "Type of weights and KV cache; auto: the model's own on GPU, float32 on CPU (with int8 a cache of bfloat16).",
        "model",
    )
    trust_remote_code: bool = setting(False, "Run Python code that comes with the model.", "model")
    seed: int | None = setting(
        None, "Seed of sampling: the same requests in the same order give the same answers.", "model", low=0,
        high=2**63 - 1, unset="random",
    )  # fmt: skip
    max_model_len: int | None = setting(
        None, "Longest prompt plus answer, in tokens.", "model", low=1, unset="from the model"
    )
    quantization: Literal["auto", "none", "int8"] = setting(
        "auto",
        "Weight quantization; auto takes what the model's files declare, int8 (CPU only) rounds the weights at start.",
        "model",
    )

    # Memory
    block_size: Literal[8, 16, 32] = setting(16, "Tokens in one block of the KV cache.", "memory")
    gpu_memory_utilization: float = setting(
        0.9, "Part of the GPU's memory that weights, activations and KV cache may take.", "memory", above=0, high=1
    )
    kv_cache_memory_gib: float | None = setting(
        None,
        "Size of the KV cache in GiB.",
        "memory",
        above=0,
        unset="from gpu_memory_utilization; on CPU from free memory",
    )
    swap_space_gib: float = setting(4.0, "Host memory for swapped-out KV blocks, in GiB.", "memory", low=0)
    enable_prefix_caching: bool = setting(True, "Reuse KV blocks of common prompt prefixes.", "memory")

    # Scheduling
    max_num_seqs: int | None = setting(
        None, "Sequences that may run at once.", "scheduling", low=1, high=65536, unset="256 on GPU, 64 on CPU"
    )
    max_num_batched_tokens: int | None = setting(
        None,
        "Tokens computed in one step, prefill and decode together.",
        "scheduling",
        low=1,
        unset="8192 on GPU, 2048 on CPU",
    )
    enable_chunked_prefill: bool = setting(True, "Let a long prompt share several steps with decodes.", "scheduling")
    scheduling_policy: Literal["fcfs", "priority"] = setting(
        "fcfs", "Order of waiting requests; priority: lower value first, then arrival.", "scheduling"
    )
    preemption_mode: Literal["auto", "swap", "recompute"] = setting(
        "auto", "What happens to a preempted sequence; auto takes the cheaper.", "scheduling"
    )
    max_queue_len: int = setting(1024, "Requests that may wait; one more is answered 429.", "scheduling", low=1)
    tensor_parallel_size: int = setting(
        1,
        "GPUs of one replica; only 1 is supported.",
        "scheduling",
        low=1,
        high=1,
        reason="a replica uses one GPU so far: take a smaller or quantized model, or more replicas",
    )
    enforce_eager: bool = setting(
        False, "Launch decode steps on a GPU kernel by kernel, not as captured CUDA graphs.", "scheduling"
    )
    log_blocks: bool = setting(False, "Log every allocation and release of a KV block.", "scheduling")

    # Speculative decoding: the names are reserved; nothing but "unset" is accepted until it is supported.
    speculative_method: Literal["none"] = setting(
        "none",
        "Speculative decoding; not supported yet.",
        "speculative",
        reason="speculative decoding is not supported yet",
    )

    # Server
    chat_template: str | None = setting(
        None, "Jinja chat template, or the path of a file with one.", "server", unset="the model's own"
    )
    host: str = setting("0.0.0.0", "Address to listen on.", "server", local=True)
    port: int = setting(8000, "TCP port to listen on; 0 picks a free one.", "server", low=0, high=65535, local=True)
    api_key: str | None = setting(
        None, "API keys that clients must send, separated by commas.", "server", unset="no key required", local=True
    )
    api_key_file: str | None = setting(None, "File with one API key per line.", "server", unset="no file", local=True)
    cors_origins: str | None = setting(
        None, "Web origins that may call from a browser, separated by commas.", "server", unset="none"
    )
    max_body_mib: float = setting(32.0, "Largest request body in MiB; more is answered 413.", "server", above=0)
    max_n: int = setting(128, "Largest `n` and `best_of` of a request.", "server", low=1, high=65536)
    header_timeout_s: float = setting(
        30.0, "Seconds to wait for a request's head, and for each further chunk of its body.", "server", above=0
    )
    keep_alive_s: float = setting(75.0, "Seconds that an idle connection is kept open.", "server", low=0)
    tool_call_parser: Literal["auto", "none", "hermes", "llama3", "mistral"] = setting(
        "auto",
        "Format of the model's tool calls; auto detects it from the chat template.",
        "server",
        reason="leave it out, and it is detected from the chat template",
    )
    reasoning_parser: Literal["none", "think", "think_open"] = setting(
        "none",
        "Split reasoning from the answer: think expects <think>...</think>, think_open a template that opens the tag.",
        "server",
    )
    metrics_compat: Literal["none", "vllm"] = setting(
        "none", "Export the metrics under vLLM's names as well.", "server"
    )
    shutdown_timeout_s: float = setting(
        30.0, "Seconds that running requests get to finish after SIGTERM.", "server", low=0
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "Least severe level to log.", "server")
    log_format: Literal["text", "json"] = setting("text", "Form of log lines.", "server")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = checked(field, type_of(field), getattr(self, field.name))
            object.__setattr__(self, field.name, value)
        self._check_step()

    def _check_step(self) -> None:
        tokens, window = self.max_num_batched_tokens, self.max_model_len
        if not self.enable_chunked_prefill and tokens is not None and window is not None and tokens < window:
            problem = (
                f"a step holds whole prompts, since enable_chunked_prefill is off; set it to at least {window}, "
                f"max_model_len to at most {tokens}, or enable_chunked_prefill to true"
            )
            raise SettingError("max_num_batched_tokens", tokens, problem)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> EngineConfig:
        """EngineConfig from snake_case names.

        Raises:
            SettingError: an unknown name (with the nearest known one) or a wrong value.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise SettingError(name, value, unknown_hint(name, known))
        return cls(**values)


_HINTS: dict[str, Any] = {}


def type_of(field: dataclasses.Field[Any]) -> Kind:
    """What one field of EngineConfig takes."""
    if not _HINTS:
        _HINTS.update(typing.get_type_hints(EngineConfig))
    return kind_of(_HINTS[field.name])
