"""An engine that begins steps before it knows the tokens of the one before answers alike."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pagetide_server import LLM, SamplingParams, factory

from .engines import DEMANDING, SETUPS, answers, check_preempted, demanding_answers, short_of_memory
from .reference import FAMILIES, NEW_TOKENS, expected, prompts_for


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("setup", [SETUPS[0], SETUPS[2], SETUPS[3], SETUPS[5]])
def test_greedy_equals_generate_when_running_ahead(tiny_model, family, setup, ahead):
    folder = str(tiny_model(family))
    with LLM(folder, dtype="float32", kv_cache_memory_gib=0.05, max_model_len=256, **setup) as llm:
        prompts = prompts_for(llm.vocab_size)
        assert answers(llm, prompts) == expected(folder)
        assert answers(llm, prompts[::-1]) == expected(folder)[::-1]
        assert [answers(llm, [p])[0] for p in prompts[:3]] == expected(folder)[:3]
    assert len(ahead) > NEW_TOKENS


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_greedy_equals_generate_when_running_ahead_short_of_memory(tiny_model, mode, ahead):
    folder = str(tiny_model("llama"))
    with LLM(folder, dtype="float32", max_model_len=180, **short_of_memory(folder, mode)) as llm:
        assert answers(llm, prompts_for(llm.vocab_size)) == expected(folder)
        check_preempted(llm, mode)
    assert ahead


def stopping_answers(llm: LLM) -> list[Any]:
    """Answers that end in many ways, at tokens that nobody foresees, and several of one request."""
    prompts = prompts_for(llm.vocab_size)
    ends = [{"stop_token_ids": tuple(range(i % 5, 384, 11))} for i in range(len(prompts))]
    params = [
        SamplingParams(**end, seed=i, temperature=0.5 * (i % 3), n=1 + i % 3, max_tokens=5 + 3 * i, top_p=1 - i % 2 / 4)
        for i, end in enumerate(ends)
    ]
    found = llm.generate(prompts, params)
    return [(o.token_ids, o.finish_reason, o.text) for r in found for o in r.outputs]


def test_answers_end_alike_when_running_ahead(tiny_model, monkeypatch, ahead):
    settings = {"dtype": "float32", "kv_cache_memory_gib": 0.05, "max_model_len": 256, "max_num_seqs": 12}
    with LLM(str(tiny_model("llama")), **settings) as llm:
        found = stopping_answers(llm)
        assert stopping_answers(llm) == found
    assert ahead
    monkeypatch.setattr(factory, "async_scheduling", lambda loaded: False)
    with LLM(str(tiny_model("llama")), **settings) as llm:
        assert stopping_answers(llm) == found
    assert {reason for _, reason, _ in found} == {"stop", "length"}


def test_what_looks_at_tokens_waits_for_them_when_running_ahead(tiny_model, undisturbed, ahead):
    with LLM(str(tiny_model("llama")), dtype="float32", kv_cache_memory_gib=0.05, max_model_len=256) as llm:
        assert demanding_answers(llm) == undisturbed
        plain = [SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)] * 4
        demanding = [msgspec.structs.replace(params, max_tokens=NEW_TOKENS) for params in DEMANDING[2:6]]
        mixed = llm.generate(prompts_for(llm.vocab_size)[:8], plain + demanding)
        assert [tuple(r.outputs[0].token_ids) for r in mixed[:4]] == expected(str(tiny_model("llama")))[:4]
