"""Settings and requests of the scheduler's tests, and what a step did in short."""

from __future__ import annotations

import zlib

from pagetide_server.engine.scheduler import SchedulerConfig
from pagetide_server.wire.messages import AddRequest, SamplingParams

SETTINGS = {
    "block_size": 4,
    "num_blocks": 32,
    "num_swap_blocks": 32,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 64,
    "preemption_mode": "recompute",
    "eos_token_ids": frozenset(),
}


def config(**changes) -> SchedulerConfig:
    return SchedulerConfig(**{**SETTINGS, **changes})


def request(name: str, prompt=5, *, priority=0, salt="", arrival=0.0, **params) -> AddRequest:
    """A request whose prompt is a list of ids, or that many ids that no other request of another name has."""
    if isinstance(prompt, int):
        first = 1000 * (zlib.crc32(name.encode()) % 1_000_000)
        prompt = list(range(first, first + prompt))
    return AddRequest(
        request_id=name,
        prompt_token_ids=prompt,
        params=SamplingParams(**{"max_tokens": 8, **params}),
        arrival=arrival,
        priority=priority,
        cache_salt=salt,
    )


def rows_of(step) -> list[tuple[str, int]]:
    """(request, tokens) of each row of a step."""
    return [(row.sequence.request_id, row.count) for row in step.rows]


def names(sequences) -> list[str]:
    return [sequence.request_id for sequence in sequences]
