"""The scheduler's settings, and which requests they rule out on arrival."""

from __future__ import annotations

import dataclasses
from typing import Literal

from ..wire.messages import AddRequest, SamplingParams

MAX_SCORED_TOKENS = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """What the scheduler must know of model, memory and wishes.

    Attributes:
        num_blocks, num_swap_blocks: KV blocks on the device and in host memory.
        vocab_size: ids that tokens may have; at most 2**32, since keys of the prefix cache pack them into 32 bits.
        max_scored_tokens: prompt tokens a step whose log probabilities are wanted (`prompt_logprobs`). Each of them
            brings a whole row of logits: a step of 8,192 over a vocabulary of 262,144 would take 8 GiB, 256 take 0.25.
        watermark: part of the blocks that an admission leaves free while others run, so that their next tokens do
            not preempt it at once.
        kv_bytes_per_token, swap_bytes_per_second, recompute_tokens_per_second: constants of the estimate in
            `preemption.py`. The defaults stand for a model of 8 billion parameters on a PCIe 4 GPU.
    """

    block_size: int
    num_blocks: int
    num_swap_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    preemption_mode: Literal["auto", "swap", "recompute"] = "auto"
    max_queue_len: int = 1024
    vocab_size: int = 2**32
    eos_token_ids: frozenset[int] = frozenset()
    max_scored_tokens: int = MAX_SCORED_TOKENS
    watermark: float = 0.01
    kv_bytes_per_token: float = 131072.0
    swap_bytes_per_second: float = 20e9
    recompute_tokens_per_second: float = 10_000.0

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the KV memory holds."""
        return self.num_blocks * self.block_size


class RequestRefused(Exception):
    """A request that the scheduler does not take; its text is one line for the client.

    Attributes:
        kind: `invalid` (can never run here) or `queue_full` (try again later).
    """

    def __init__(self, kind: Literal["invalid", "queue_full"], message: str) -> None:
        self.kind: Literal["invalid", "queue_full"] = kind
        super().__init__(message)


def answers(params: SamplingParams) -> int:
    """Sequences that a request is answered in: `best_of` if given, else `n`."""
    return max(params.n, params.best_of or 0)


def final_length(request: AddRequest, config: SchedulerConfig) -> int:
    """Prompt and longest answer together, in tokens, clipped to the model's context length."""
    asked = request.params.max_tokens
    if asked is None:
        return config.max_model_len
    return min(len(request.prompt_token_ids) + asked, config.max_model_len)


def check_request(request: AddRequest, config: SchedulerConfig) -> None:
    """Refuse what could never run, however long it waited.

    Raises:
        RequestRefused: `invalid`; the text has what was asked for and what there is.
    """
    problem = _length_problem(request, config) or _batch_problem(request, config)
    if problem:
        raise RequestRefused("invalid", problem)


def _length_problem(request: AddRequest, config: SchedulerConfig) -> str | None:
    prompt, asked = len(request.prompt_token_ids), request.params.max_tokens
    window, memory = config.max_model_len, config.capacity_tokens
    if prompt == 0:
        return "the prompt has no token; give at least one"
    for token_id in (min(request.prompt_token_ids), max(request.prompt_token_ids)):
        if not 0 <= token_id < config.vocab_size:
            return f"the prompt has the token id {token_id}; ids are at least 0 and less than {config.vocab_size}"
    if prompt + (asked != 0) > window:
        room = "" if asked == 0 else " and one token of the answer"
        return f"the prompt has {prompt} tokens, which{room} must fit in max_model_len of {window}; shorten the prompt"
    total = final_length(request, config)
    # (The factory makes no context that the memory cannot hold; a config made by hand may.)
    if total > memory:
        return (
            f"the prompt of {prompt} tokens and an answer of up to {total - prompt} need {total} tokens of KV memory, "
            f"which holds {memory}; lower max_tokens or shorten the prompt"
        )
    return None


def _batch_problem(request: AddRequest, config: SchedulerConfig) -> str | None:
    prompt, count = len(request.prompt_token_ids), answers(request.params)
    if not config.enable_chunked_prefill and prompt > config.max_num_batched_tokens:
        return (
            f"the prompt has {prompt} tokens, but a step computes max_num_batched_tokens of "
            f"{config.max_num_batched_tokens} and enable_chunked_prefill is off; shorten the prompt"
        )
    if count > config.max_num_seqs:
        name = "best_of" if (request.params.best_of or 0) > request.params.n else "n"
        return f"{name} is {count}, but max_num_seqs is {config.max_num_seqs}; lower {name}"
    return None
