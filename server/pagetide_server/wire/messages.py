"""What the API process and the engine process say to each other: plain structs, sent as msgpack.

Times are seconds of the machine's monotonic clock (`time.monotonic()`), which both processes share.
"""

from __future__ import annotations

import difflib
from typing import Any, Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "error"]
ErrorKind = Literal["invalid", "structure", "queue_full", "engine"]


class _Hinting(msgspec.StructMeta):
    """Of structs that users of the library make: a misspelt field is told with the nearest one."""

    def __call__(cls, *given: Any, **fields: Any) -> Any:
        known = cls.__struct_fields__
        for name in fields.keys() - set(known):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{cls.__name__} has no field {name!r}{hint}")
        return super().__call__(*given, **fields)


class Structure(msgspec.Struct, metaclass=_Hinting, frozen=True, kw_only=True):
    """What the answer must look like; `value` is a JSON schema, a regex, a JSON list or a grammar, as text."""

    kind: Literal["json", "json_object", "regex", "choice", "grammar"]
    value: str = ""


class SamplingParams(msgspec.Struct, metaclass=_Hinting, frozen=True, kw_only=True):
    """How to continue a prompt. Checked by `checks.check_params`; the engine trusts it.

    `temperature` 0 is greedy. `top_k` 0 or -1 keeps all tokens. `logprobs` counts the alternatives beside the sampled
    token (0: the sampled one only; None: none at all). `max_tokens` None means: up to the model's context length.
    """

    n: int = 1
    best_of: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int | None = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] = {}
    # The only tokens that may come, the end of the answer included; empty: all.
    allowed_token_ids: tuple[int, ...] = ()
    structure: Structure | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True


# ---- API process -> engine process


class AddRequest(msgspec.Struct, tag=True, kw_only=True):
    """Start a request; its answer comes in `params.n` sequences (`best_of`, if given)."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    arrival: float
    priority: int = 0
    cache_salt: str = ""


class AbortRequest(msgspec.Struct, tag=True):
    """Stop a request (`index` None) or one of its sequences; frees its blocks before the next step.

    Unknown ids are ignored: the request may have ended in the meantime.
    """

    request_id: str
    index: int | None = None
    # `stop`: a stop string was found; `abort`: the client is gone.
    reason: Literal["stop", "abort"] = "abort"


class Shutdown(msgspec.Struct, tag=True):
    """End the engine process now."""


ToEngine = AddRequest | AbortRequest | Shutdown


# ---- engine process -> API process


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Log probabilities at one position: of the token itself, its rank (1 = highest), and of the most probable ones."""

    token_id: int
    logprob: float
    rank: int
    top_ids: list[int] = []
    top_logprobs: list[float] = []


class SequenceOutput(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one step brought for one sequence: usually one new token.

    The first output of a sequence carries `scheduled` (time of its request's first step), `cached_tokens` and, if
    asked for, `prompt_logprobs` (one entry a prompt token; None for the first).
    """

    request_id: str
    index: int = 0
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    finish_reason: FinishReason | None = None
    # The stop token that ended it, if one did: it is part of `token_ids` but not of the text.
    stop_token_id: int | None = None
    scheduled: float = 0.0
    cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    # For finish_reason "error": what went wrong, and who must act: the client (invalid, or its structure: 400;
    # queue_full: 429) or us.
    error: str = ""
    error_kind: ErrorKind | None = None


class EngineStats(msgspec.Struct, kw_only=True):
    """State and running totals of the engine after a step; totals never go back."""

    # State now
    running: int = 0
    waiting: int = 0
    swapped: int = 0
    oldest_arrival: float | None = None
    blocks_free: int = 0
    blocks_cached: int = 0
    blocks_used: int = 0
    blocks_swapped: int = 0
    admissible_seqs: int = 0
    # Totals since start
    steps: int = 0
    preemptions_swap: int = 0
    preemptions_recompute: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    block_allocations: int = 0
    block_allocation_failures: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    # Of prefixes that prompts share (prefix_lengths.py): what lies behind the last full block, and what an unlimited
    # cache would save with blocks of each size.
    prefix_tail_tokens: int = 0
    prefix_shareable_tokens: dict[int, int] = {}


class StepOutput(msgspec.Struct, tag=True, kw_only=True):
    """All that one step brought. `tokens` and `sequences` are 0 when the message only reports aborts and errors.

    Between the processes, most outputs travel as an entry of each column instead (columns.py).
    """

    outputs: list[SequenceOutput]
    stats: EngineStats
    time: float
    # Requests, and the token of each one's first sequence.
    plain_ids: list[str] = []
    plain_tokens: list[int] = []
    seconds: float = 0.0
    tokens: int = 0
    sequences: int = 0


class Ready(msgspec.Struct, tag=True, kw_only=True):
    """The model is loaded and the engine steps; what the API process must know of it.

    `device` is the name of the processor, `device_type` torch's word for its kind. `kv_cache_dtype` is "" where there
    is no cache. `step_seconds` is an estimate for the longest step.
    """

    max_model_len: int
    vocab_size: int
    eos_token_ids: list[int]
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_blocks: int
    num_swap_blocks: int
    dtype: str
    device: str
    attention: str
    device_type: Literal["cpu", "cuda"] = "cpu"
    kv_cache_dtype: str = ""
    step_seconds: float = 0.0


class Loading(msgspec.Struct, tag=True, kw_only=True):
    """Progress before `Ready`."""

    stage: str
    fraction: float


class Heartbeat(msgspec.Struct, tag=True, kw_only=True):
    """Sent every second by a thread of the engine process, also during a long step."""

    time: float
    steps: int
    # Begin of the step that is running, or None when the engine is idle.
    step_started: float | None
    has_work: bool
    # Processor time of the engine process so far.
    cpu_seconds: float = 0.0


class Failed(msgspec.Struct, tag=True, kw_only=True):
    """The engine cannot start or go on; the process exits with `exit_code` after this message."""

    message: str
    exit_code: int


FromEngine = StepOutput | Ready | Loading | Heartbeat | Failed
