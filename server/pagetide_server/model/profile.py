"""Run the greatest step that the limits allow, to see how much memory its activations take."""

from __future__ import annotations

import torch

from ..engine.limits import MAX_SCORED_TOKENS
from ..engine.sampling.noise import table_bytes
from ..engine.sequence import Row, Sequence, Step
from ..wire.messages import AddRequest, SamplingParams
from .loader import LoadedModel
from .runner import Runner


def greatest_step(
    max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int, block_size: int
) -> tuple[Step, int]:
    """(a step of as many tokens and logits rows as the limits allow, blocks that its tables name).

    All its sequences share the same blocks: what is computed means nothing, only its size does.
    """
    counts: list[int] = []
    left = max_num_batched_tokens
    while left and len(counts) < max_num_seqs:
        # As many tokens as possible, but one for each sequence that is still to come.
        later = min(max_num_seqs - len(counts) - 1, left - 1)
        counts.append(min(left - later, max_model_len))
        left -= counts[-1]
    blocks = -(-max(counts) // block_size)
    rows = []
    for i, count in enumerate(sorted(counts)):
        request = AddRequest(request_id=str(i), prompt_token_ids=[0] * count, params=SamplingParams(), arrival=0.0)
        sequence = Sequence(request, i)
        sequence.blocks = list(range(blocks))
        rows.append(Row(sequence, 0, count, samples=True))
    return Step(rows=rows), blocks


def sampler_bytes(vocab_size: int) -> int:
    """Bytes that sampling takes whatever the batch.

    That is its tables of random bits, and the logits of prompt tokens whose log probabilities are wanted, as the model
    gives them and float32.
    """
    return table_bytes(vocab_size) + 2 * MAX_SCORED_TOKENS * vocab_size * 4


def peak_bytes(loaded: LoadedModel, max_num_seqs: int, max_num_batched_tokens: int, block_size: int) -> int:
    """Bytes that the GPU holds at most during the greatest step, weights included."""
    step, blocks = greatest_step(max_num_seqs, max_num_batched_tokens, loaded.max_model_len, block_size)
    runner = Runner(loaded, blocks, 0, block_size)
    own = sum(part.nbytes for cache in runner.caches for part in cache)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(loaded.device)
    logits = runner.execute(step)
    # The sampler works on a copy of the logits and on their sorted form, beside what it takes whatever the batch.
    extra = 2 * logits.sampling.nbytes + sampler_bytes(loaded.vocab_size)
    peak = torch.cuda.max_memory_reserved(loaded.device) + extra - own
    del runner, logits
    torch.cuda.empty_cache()
    return peak
