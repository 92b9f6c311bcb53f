"""Greedy answers equal transformers' `generate` token for token in float32, however the engine is set up."""

from __future__ import annotations

import functools
import random

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from pagetide_server import LLM, SamplingParams

NEW_TOKENS = 20
LENGTHS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 23, 31, 32, 33, 47, 64, 65, 90, 121)
FAMILIES = ("llama", "qwen3", "gemma3")


def prompts_for(vocab_size: int) -> list[list[int]]:
    """Prompts of many lengths around block borders; the last ones share a beginning of 40 tokens."""
    rng = random.Random(7)
    prompts = [[rng.randrange(3, vocab_size) for _ in range(n)] for n in LENGTHS]
    shared = prompts[-1][:40]
    return prompts + [shared + [rng.randrange(3, vocab_size) for _ in range(n)] for n in (1, 8, 30)]


@functools.cache
def expected(folder: str) -> tuple[tuple[int, ...], ...]:
    """What transformers generates for each prompt, one at a time."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    answers = []
    for prompt in prompts_for(model.config.vocab_size):
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
        )
        answers.append(tuple(out[0, len(prompt) :].tolist()))
    return tuple(answers)


def kv_gib(folder: str, blocks: int, block_size: int) -> float:
    """KV memory for just so many blocks."""
    config = AutoConfig.from_pretrained(folder).get_text_config()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    block_bytes = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * 4 * block_size
    return (blocks + 0.5) * block_bytes / 2**30


def answers(llm: LLM, prompts: list[list[int]], **params: object) -> list[tuple[int, ...]]:
    """Greedy token ids of all prompts at once; afterwards nothing may be left in the engine."""
    each = SamplingParams(**{"temperature": 0.0, "max_tokens": NEW_TOKENS, "ignore_eos": True, **params})
    found = [tuple(r.outputs[0].token_ids) for r in llm.generate(prompts, each)]
    left = llm.stats
    assert (left.running, left.waiting, left.swapped, left.blocks_used, left.blocks_swapped) == (0, 0, 0, 0, 0)
    return found


SETUPS = [
    pytest.param({}, id="as it comes"),
    pytest.param({"enable_prefix_caching": False}, id="without prefix caching"),
    pytest.param({"max_num_batched_tokens": 16, "max_num_seqs": 8}, id="prompts in chunks of 16 tokens"),
    pytest.param({"max_num_batched_tokens": 7, "max_num_seqs": 4}, id="chunks that end inside blocks"),
    pytest.param({"enable_chunked_prefill": False}, id="whole prompts only"),
    pytest.param({"block_size": 8}, id="blocks of 8"),
    pytest.param({"block_size": 32}, id="blocks of 32"),
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("setup", SETUPS)
def test_greedy_equals_generate_in_a_mixed_batch(tiny_model, family, setup):
    folder = str(tiny_model(family))
    with LLM(folder, dtype="float32", kv_cache_memory_gib=0.05, max_model_len=256, **setup) as llm:
        prompts = prompts_for(llm.vocab_size)
        assert answers(llm, prompts) == list(expected(folder))
        # Once more over the warm cache, in another order.
        assert answers(llm, prompts[::-1]) == list(expected(folder))[::-1]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate_alone(tiny_model, family):
    folder = str(tiny_model(family))
    with LLM(folder, dtype="float32", kv_cache_memory_gib=0.05, max_model_len=256) as llm:
        prompts = prompts_for(llm.vocab_size)
        assert [answers(llm, [p])[0] for p in prompts] == list(expected(folder))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", ["swap", "recompute", "auto"])
def test_greedy_equals_generate_when_memory_is_short(tiny_model, family, mode):
    folder = str(tiny_model(family))
    memory = kv_gib(folder, blocks=24, block_size=8)
    setup = {"block_size": 8, "kv_cache_memory_gib": memory, "preemption_mode": mode, "swap_space_gib": 0.05}
    with LLM(folder, dtype="float32", max_model_len=180, **setup) as llm:
        assert answers(llm, prompts_for(llm.vocab_size)) == list(expected(folder))
        stats = llm.stats
    assert stats.preemptions_swap + stats.preemptions_recompute > 0
    if mode != "auto":
        assert getattr(stats, f"preemptions_{mode}") > 0
    assert (stats.swapped_out_blocks > 0) == (stats.preemptions_swap > 0)


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_seeded_samples_do_not_depend_on_batch_or_preemption(tiny_model, mode):
    folder = str(tiny_model("llama"))
    seeded = {"temperature": 1.0, "seed": 11}
    with LLM(folder, dtype="float32", kv_cache_memory_gib=0.05, max_model_len=180) as llm:
        prompts = prompts_for(llm.vocab_size)
        alone = [answers(llm, [p], **seeded)[0] for p in prompts]
        assert answers(llm, prompts, **seeded) == alone
    memory = kv_gib(folder, blocks=24, block_size=8)
    setup = {"block_size": 8, "kv_cache_memory_gib": memory, "preemption_mode": mode, "swap_space_gib": 0.05}
    with LLM(folder, dtype="float32", max_model_len=180, **setup) as llm:
        assert answers(llm, prompts, **seeded) == alone
        assert llm.stats.preemptions_swap + llm.stats.preemptions_recompute > 0


def test_samples_of_one_request_share_its_prompt(tiny_model):
    folder = str(tiny_model("llama"))
    with LLM(folder, dtype="float32", kv_cache_memory_gib=0.05, max_model_len=256) as llm:
        prompt = prompts_for(llm.vocab_size)[-4]
        params = SamplingParams(n=4, temperature=1.0, seed=3, max_tokens=NEW_TOKENS, ignore_eos=True)
        before = llm.stats.block_allocations
        (result,) = llm.generate([prompt], params)
        taken = llm.stats.block_allocations - before
        # 121 tokens are 8 blocks of 16, shared; 20 more tokens need 2 blocks in each of four answers.
        assert taken <= 8 + 4 * 2
        assert len({tuple(o.token_ids) for o in result.outputs}) == 4
        (again,) = llm.generate([prompt], params)
        assert [o.token_ids for o in again.outputs] == [o.token_ids for o in result.outputs]
        greedy = SamplingParams(n=3, temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
        (three,) = llm.generate([prompt], greedy)
        assert {tuple(o.token_ids) for o in three.outputs} == {expected(folder)[-4]}
