"""Parameters and prompts that many tests of the library use."""

from __future__ import annotations

from pagetide_server import SamplingParams
from pagetide_server.wire.messages import Structure

SETTINGS = {"dtype": "float32", "kv_cache_memory_gib": 0.01, "max_num_seqs": 16}
USER = {"role": "user", "content": "Hi"}
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def regex(value) -> Structure:
    return Structure(kind="regex", value=value)


def greedy(**changes) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 6, "ignore_eos": True, **changes})
