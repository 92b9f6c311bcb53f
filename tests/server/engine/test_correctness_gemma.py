"""Gemma 3 270M with its real weights: greedy answers equal transformers' however the engine is set up.

Its layers look back 512 tokens, but for every sixth; one prompt is longer.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

from pagetide_server import LLM, SamplingParams, factory
from pagetide_server.checkpoint.files import resolve
from pagetide_server.text.tokenizer import Tokenizer
from pagetide_spec.config import EngineConfig

pytestmark = [pytest.mark.real_model, pytest.mark.slow]

NEW_TOKENS = 16
# 18 layers of one head of 256, keys and values, in float32; 16 tokens a block.
BLOCK_GIB = 18 * 2 * 256 * 4 * 16 / 2**30
PLACES = ("harbour", "mountain", "market", "library", "river", "station", "garden", "bridge")
STORY = " ".join(
    f"On day {i} the traveller went to the {PLACES[i % 8]}, counted {3 * i} birds, and wrote it down."
    for i in range(40)
)


@pytest.fixture(scope="module", autouse=True)
def _poisoned(poisoned_memory):
    """For every engine here, those of fixtures included."""


@pytest.fixture(scope="module")
def prompts(gemma_gguf: Path) -> list[list[int]]:
    """Three prompts of 60, 59 and 560 tokens."""
    tokenizer = Tokenizer.load(EngineConfig(model=str(gemma_gguf)))
    story = tokenizer.encode(STORY)
    other = tokenizer.encode("The capital of France is Paris, and the capital of Germany is " + STORY)
    assert len(story) >= 560
    return [story[:60], other[:59], story[:560]]


@pytest.fixture(scope="module")
def expected(gemma_gguf: Path, prompts: list[list[int]]) -> list[list[int]]:
    from transformers import AutoModelForCausalLM

    folder = resolve(EngineConfig(model=str(gemma_gguf)))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
        )
        found.append(out[0, len(prompt) :].tolist())
    return found


@pytest.fixture(scope="module")
def load_once():
    """The loader, which reads the same weights only once."""
    loaded = functools.cache(lambda config: factory_load(EngineConfig(model=config[0], max_model_len=config[1])))
    factory_load = factory.load
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factory, "load", lambda config, progress: loaded((config.model, config.max_model_len)))
        yield


@pytest.mark.usefixtures("load_once")
@pytest.mark.parametrize(
    ("setup", "preempted"),
    [
        pytest.param({}, None, id="as it comes"),
        pytest.param({"max_num_batched_tokens": 100, "block_size": 32}, None, id="chunks of 100 tokens, blocks of 32"),
        # The prompts take 40 blocks, for the last begins like the first, and every answer needs one more.
        pytest.param({"kv_cache_memory_gib": 42.5 * BLOCK_GIB}, "swap", id="short of memory, swapping"),
        pytest.param({"kv_cache_memory_gib": 42.5 * BLOCK_GIB}, "recompute", id="short of memory, recomputing"),
    ],
)
def test_greedy_equals_generate(gemma_gguf, prompts, expected, setup, preempted):
    settings = {"kv_cache_memory_gib": 0.25, "max_model_len": 640, **setup}
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    with LLM(str(gemma_gguf), preemption_mode=preempted or "auto", **settings) as llm:
        assert [r.outputs[0].token_ids for r in llm.generate(prompts, params)] == expected
        assert (llm.stats.preemptions_swap > 0, llm.stats.preemptions_recompute > 0) == (
            preempted == "swap",
            preempted == "recompute",
        )
        if preempted is None:
            # Once more, alone and from the prefix cache.
            (again,) = llm.generate(prompts[2], params)
            assert again.outputs[0].token_ids == expected[2]
            assert again.metrics.cached_tokens >= 544
