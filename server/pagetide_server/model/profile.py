"""Run the greatest step that the limits allow, to see how much memory its activations take."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ..engine.limits import MAX_SCORED_TOKENS
from ..engine.sampling.noise import table_bytes
from ..engine.sequence import Row, Sequence, Step
from ..wire.messages import AddRequest, SamplingParams
from .limits import BatchLimits
from .loader import LoadedModel
from .runner import Runner

# Blocks of the KV cache that the greatest step runs on.
FEW_BLOCKS = 64


def greatest_step(limits: BatchLimits, max_model_len: int, block_size: int) -> tuple[Step, int]:
    """(a step of as many tokens and logits rows as the limits allow, blocks that its tables name).

    Every row is the end of a sequence as long as the context, for attention gathers the keys of all that lies before a
    row. The sequences share a few blocks, however long they are: what is computed means nothing, only its size does.
    """
    counts: list[int] = []
    left = limits.max_num_batched_tokens
    while left and len(counts) < limits.max_num_seqs:
        # As many tokens as possible, but one for each sequence that is still to come.
        later = min(limits.max_num_seqs - len(counts) - 1, left - 1)
        counts.append(min(left - later, max_model_len))
        left -= counts[-1]
    needed = -(-max_model_len // block_size)
    few = min(needed, FEW_BLOCKS)
    tokens, blocks = [0] * max_model_len, [i % few for i in range(needed)]
    rows = []
    for i, count in enumerate(sorted(counts)):
        request = AddRequest(request_id=str(i), prompt_token_ids=[0], params=SamplingParams(), arrival=0.0)
        sequence = Sequence(request, i)
        sequence.tokens, sequence.blocks = tokens, blocks
        rows.append(Row(sequence, max_model_len - count, count, samples=True))
    return Step(rows=rows), few


def sampler_bytes(vocab_size: int, on_gpu: bool = True) -> int:
    """Bytes that sampling takes whatever the batch.

    That is its tables of random bits, and the logits of prompt tokens whose log probabilities are wanted: on a GPU as
    the model gives them and float32, on a CPU float32 alone.
    """
    return table_bytes(vocab_size) + (1 + on_gpu) * MAX_SCORED_TOKENS * vocab_size * 4


def estimated_activations(
    hf_config: Any, vocab_size: int, limits: BatchLimits, dtype: torch.dtype, on_gpu: bool
) -> int:
    """Bytes that the greatest step takes beside weights and KV cache, estimated. On a CPU layers compute in float32.

    That is, of each token the residual stream, its norms, query, keys, values and the gated inner width, of each
    sequence three rows of float32 logits, and what sampling takes whatever the batch. What attention gathers of long
    contexts is left out.
    """
    tokens = limits.max_num_batched_tokens * _token_bytes(hf_config, dtype if on_gpu else torch.float32)
    return int(tokens + 3 * limits.max_num_seqs * vocab_size * 4 + sampler_bytes(vocab_size, on_gpu))


def estimated_graphs(hf_config: Any, vocab_size: int, limits: BatchLimits, dtype: torch.dtype) -> int:
    """Bytes that captured decode steps take, estimated: of each sequence a token, and logits in two types."""
    return int(limits.max_num_seqs * (_token_bytes(hf_config, dtype) + vocab_size * (4 + dtype.itemsize)))


def _token_bytes(hf_config: Any, dtype: torch.dtype) -> int:
    text = hf_config.get_text_config()
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    return int((8 * text.hidden_size + 3 * inner) * dtype.itemsize)


def peak_bytes(loaded: LoadedModel, limits: BatchLimits, max_model_len: int, block_size: int) -> int:
    """Bytes that the GPU holds at most during the greatest step, weights included.

    A step of decodes alone runs as well: there, attention keeps sums for every part of every row's context.
    """
    fewest = min(limits.max_num_seqs, limits.max_num_batched_tokens)
    decodes = dataclasses.replace(limits, max_num_batched_tokens=fewest)
    steps = [greatest_step(each, max_model_len, block_size) for each in (limits, decodes)]
    runner = Runner(loaded, steps[0][1], 0, block_size)
    own = sum(part.nbytes for cache in runner.caches for part in cache)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(loaded.device)
    logits_bytes = max(runner.execute(step).written().nbytes for step, _ in steps)
    # The sampler works on a copy of the logits and on their sorted form, beside what it takes whatever the batch.
    extra = 2 * logits_bytes + sampler_bytes(loaded.vocab_size)
    peak = torch.cuda.max_memory_reserved(loaded.device) + extra - own
    del runner
    torch.cuda.empty_cache()
    return peak
