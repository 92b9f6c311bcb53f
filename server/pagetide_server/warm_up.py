"""Take steps of every kind before the first request, so that on a GPU none of its steps waits for Triton's compiler.

Capturing decode steps compiles what these need. Here are the others: chunks of prompts, a few tokens of many sequences,
long decodes where nothing is captured, sampling, and copies of blocks.
"""

from __future__ import annotations

import logging
import time

from .engine.sampling.sampler import Sampler
from .engine.sequence import Row, Sequence, Step
from .model.runner import Runner
from .wire.messages import AddRequest, SamplingParams

log = logging.getLogger(__name__)

_DRAWN = SamplingParams(temperature=1.0, top_k=5, top_p=0.9, seed=0)


def first_steps(idle_block: int, block_size: int, window: int) -> list[Step]:
    """Steps of sequences that all use one block, which no other may have; the first one also copies it over block 0.

    Args:
        idle_block: the block.
        block_size: tokens that it holds.
        window: longest sequence of the engine.
    """
    # Only where there is Triton.
    from pagetide_kernels.gpu.paged_attention import CHUNK_ROWS, SPLIT

    def row(start: int, count: int) -> Row:
        request = AddRequest(request_id="warm up", prompt_token_ids=[0], params=_DRAWN, arrival=0.0)
        sequence = Sequence(request, 0)
        sequence.tokens = [0] * (start + count)
        sequence.blocks = [idle_block] * -(-(start + count) // block_size)
        return Row(sequence, start, count, samples=True)

    chunk, long = min(2 * CHUNK_ROWS, window), min(SPLIT + 1, window)
    return [
        Step([row(0, chunk)], copies=[(idle_block, 0)]),
        Step([row(chunk - 1, 1), row(0, min(2, window))]),
        Step([row(long - 1, 1)]),
    ]


def warm_up(runner: Runner, sampler: Sampler, window: int) -> None:
    """Take the first steps; block 0 and the idle one then hold something. No sequence may have a block yet."""
    began = time.monotonic()
    for step in first_steps(runner.idle_block, runner.block_size, window):
        launched = sampler.launch(runner.execute(step).sampling, step.sampling())
        if launched is not None:
            launched.wait()
    log.info("the first steps, which compile kernels, took %.1f s", time.monotonic() - began)
