"""Samples with a seed depend on nothing else, and those of one request share its prompt."""

from __future__ import annotations

import pytest

from pagetide_server import LLM, SamplingParams

from .engines import SETUPS, answers, check_preempted, short_of_memory
from .reference import NEW_TOKENS, Answers, expected, prompts_for

SEEDED = {"temperature": 1.0, "top_p": 0.95, "seed": 11}


@pytest.fixture(scope="module")
def seeded_alone(tiny_model) -> Answers:
    """The tiny Llama's seeded samples, each prompt alone."""
    with LLM(str(tiny_model("llama")), dtype="float32", kv_cache_memory_gib=0.05, max_model_len=256) as llm:
        return [answers(llm, [p], **SEEDED)[0] for p in prompts_for(llm.vocab_size)]


@pytest.mark.parametrize("setup", SETUPS)
def test_seeded_samples_do_not_depend_on_batch_mates_or_setup(tiny_model, seeded_alone, setup):
    with LLM(str(tiny_model("llama")), dtype="float32", kv_cache_memory_gib=0.05, max_model_len=256, **setup) as llm:
        prompts = prompts_for(llm.vocab_size)
        assert answers(llm, prompts, **SEEDED) == seeded_alone
        assert answers(llm, prompts[::-1], **SEEDED) == seeded_alone[::-1]


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_seeded_samples_do_not_depend_on_preemption(tiny_model, seeded_alone, mode):
    folder = str(tiny_model("llama"))
    with LLM(folder, dtype="float32", max_model_len=180, **short_of_memory(folder, mode)) as llm:
        assert answers(llm, prompts_for(llm.vocab_size), **SEEDED) == seeded_alone
        check_preempted(llm, mode)


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
