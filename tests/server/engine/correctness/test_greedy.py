"""Greedy answers equal transformers' `generate` token for token in float32, however the engine is set up."""

from __future__ import annotations

import pytest

from pagetide_server import LLM, factory

from .engines import SETUPS, answers, check_preempted, short_of_memory
from .reference import FAMILIES, FEW, expected, prompts_for


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("setup", SETUPS)
def test_greedy_equals_generate_in_a_mixed_batch(tiny_model, family, setup):
    folder = str(tiny_model(family))
    with LLM(folder, dtype="float32", kv_cache_memory_gib=0.05, max_model_len=256, **setup) as llm:
        prompts = prompts_for(llm.vocab_size)
        assert answers(llm, prompts) == expected(folder)
        # Once more over the warm cache, in another order.
        assert answers(llm, prompts[::-1]) == expected(folder)[::-1]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate_alone(tiny_model, family):
    folder = str(tiny_model(family))
    with LLM(folder, dtype="float32", kv_cache_memory_gib=0.05, max_model_len=256) as llm:
        prompts = prompts_for(llm.vocab_size)
        assert [answers(llm, [p])[0] for p in prompts] == expected(folder)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", ["swap", "recompute", "auto"])
def test_greedy_equals_generate_when_memory_is_short(tiny_model, family, mode):
    folder = str(tiny_model(family))
    with LLM(folder, dtype="float32", max_model_len=180, **short_of_memory(folder, mode)) as llm:
        assert answers(llm, prompts_for(llm.vocab_size)) == expected(folder)
        check_preempted(llm, mode)


def test_every_kind_of_model_in_the_usual_setup(tiny_model, tiny_kind):
    folder = str(tiny_model(tiny_kind))
    with LLM(folder, dtype="float32", kv_cache_memory_gib=0.02) as llm:
        prompts = prompts_for(llm.vocab_size, FEW)
        assert answers(llm, prompts) == expected(folder, FEW)
        assert answers(llm, prompts[::-1]) == expected(folder, FEW)[::-1]
        assert llm.stats.prefix_hit_tokens > 0


@pytest.fixture
def recorded(monkeypatch):
    """Engines replay their decode steps as on a GPU, by a call on the buffers of the recording."""

    def repeated(work):
        work()
        return work

    monkeypatch.setattr(factory, "recorder_for", lambda config, loaded: lambda: repeated)
    monkeypatch.setattr(factory, "recorded_bytes", lambda *args: 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate_on_recorded_steps(tiny_model, family, recorded):
    folder = str(tiny_model(family))
    with LLM(folder, dtype="float32", kv_cache_memory_gib=0.05, max_model_len=256, max_num_seqs=20) as llm:
        assert answers(llm, prompts_for(llm.vocab_size)) == expected(folder)
    with LLM(folder, dtype="float32", max_model_len=180, **short_of_memory(folder, "swap")) as llm:
        assert answers(llm, prompts_for(llm.vocab_size)) == expected(folder)
        check_preempted(llm, "swap")
