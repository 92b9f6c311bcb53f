"""Ways to set up an engine, and what it answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from transformers import AutoConfig

from pagetide_server import LLM, SamplingParams
from pagetide_server.wire.messages import Structure

from .reference import NEW_TOKENS, Answers, prompts_for


def kv_gib(folder: str, blocks: int, block_size: int) -> float:
    """KV memory for just so many blocks."""
    config = AutoConfig.from_pretrained(folder).get_text_config()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    block_bytes = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * 4 * block_size
    return (blocks + 0.5) * block_bytes / 2**30


def short_of_memory(folder: str, mode: str, blocks: int = 24) -> dict[str, Any]:
    """Settings under which the prompts cannot all stay in memory."""
    memory = kv_gib(folder, blocks, block_size=8)
    return {"block_size": 8, "kv_cache_memory_gib": memory, "preemption_mode": mode, "swap_space_gib": 0.05}


def check_preempted(llm: LLM, mode: str) -> None:
    """The test has tested what it says."""
    stats = llm.stats
    assert stats.preemptions_swap + stats.preemptions_recompute > 0
    if mode != "auto":
        assert getattr(stats, f"preemptions_{mode}") > 0
    assert (stats.swapped_out_blocks > 0) == (stats.preemptions_swap > 0)


def answers(llm: LLM, prompts: list[list[int]], **params: object) -> Answers:
    """Greedy token ids of all prompts at once."""
    each = SamplingParams(**{"temperature": 0.0, "max_tokens": NEW_TOKENS, "ignore_eos": True, **params})
    return [tuple(r.outputs[0].token_ids) for r in llm.generate(prompts, each)]


SETUPS = [
    pytest.param({}, id="as it comes"),
    pytest.param({"enable_prefix_caching": False}, id="without prefix caching"),
    pytest.param({"max_num_batched_tokens": 16, "max_num_seqs": 8}, id="prompts in chunks of 16 tokens"),
    pytest.param({"max_num_batched_tokens": 7, "max_num_seqs": 4}, id="chunks that end inside blocks"),
    pytest.param({"enable_chunked_prefill": False}, id="whole prompts only"),
    pytest.param({"block_size": 8}, id="blocks of 8"),
    pytest.param({"block_size": 32}, id="blocks of 32"),
]

DEMANDING = [
    SamplingParams(structure=Structure(kind="regex", value="[a-z]{12,18}"), max_tokens=30, seed=1),
    SamplingParams(structure=Structure(kind="json", value='{"type": "array", "items": {"type": "integer"}}'), seed=2),
    SamplingParams(repetition_penalty=1.5, presence_penalty=1.0, frequency_penalty=0.5, temperature=0.0),
    SamplingParams(min_tokens=18, logit_bias={2: 50.0}, temperature=0.0),
    SamplingParams(n=3, temperature=0.8, top_k=20, seed=3, frequency_penalty=2.0),
    SamplingParams(logprobs=2, temperature=0.7, min_p=0.05, seed=4),
]


def demanding_answers(llm: LLM) -> list[list[Any]]:
    prompts = [p for p in prompts_for(llm.vocab_size) if len(p) > 20]
    params = [
        msgspec.structs.replace(DEMANDING[i % len(DEMANDING)], max_tokens=NEW_TOKENS) for i in range(len(prompts))
    ]
    return [[(o.text, o.token_ids, o.finish_reason) for o in r.outputs] for r in llm.generate(prompts, params)]
