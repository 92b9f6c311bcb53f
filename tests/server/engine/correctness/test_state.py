"""State beside the KV cache: structures, penalties, scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pagetide_server import LLM, SamplingParams

from .engines import check_preempted, demanding_answers, short_of_memory
from .reference import network, prompts_for


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_structures_and_penalties_survive_preemption(tiny_model, undisturbed, mode):
    folder = str(tiny_model("llama"))
    with LLM(folder, dtype="float32", max_model_len=180, **short_of_memory(folder, mode)) as llm:
        assert demanding_answers(llm) == undisturbed
        check_preempted(llm, mode)


def teacher_forced(folder: str, prompt: list[int]) -> torch.Tensor:
    """log softmax of transformers' own logits at each token but the last: [len(prompt) - 1, vocabulary]."""
    with torch.inference_mode():
        return network(folder)(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)


@pytest.mark.parametrize(
    "setup",
    [
        pytest.param({}, id="as it comes: at most 256 tokens a step"),
        pytest.param({"max_num_batched_tokens": 50, "max_num_seqs": 8}, id="prompts in chunks of 50 tokens"),
        pytest.param("swap", id="short of memory, swapping"),
        pytest.param("recompute", id="short of memory, recomputing"),
    ],
)
def test_prompt_logprobs_are_those_of_teacher_forcing(tiny_model, setup):
    folder = str(tiny_model("qwen3"))
    lengths = (300, 1, 121, 300, 47)
    settings = {"kv_cache_memory_gib": 0.05, **setup} if isinstance(setup, dict) else short_of_memory(folder, setup, 60)
    with LLM(folder, dtype="float32", max_model_len=350, **settings) as llm:
        prompts = prompts_for(llm.vocab_size, lengths)
        params = SamplingParams(prompt_logprobs=3, max_tokens=40, temperature=0.0, ignore_eos=True)
        for result in llm.generate(prompts, params):
            none, *scores = result.prompt_logprobs
            assert none is None
            check_scores(scores, result.prompt_token_ids, teacher_forced(folder, result.prompt_token_ids))
        if isinstance(setup, str):
            check_preempted(llm, setup)


def check_scores(scores: list[Any], prompt: list[int], logprobs: torch.Tensor) -> None:
    assert [s.token_id for s in scores] == prompt[1:]
    if not scores:
        return
    own = logprobs.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor([s.logprob for s in scores]), own, rtol=1e-4, atol=1e-4)
    best = torch.tensor([s.top_logprobs for s in scores])
    torch.testing.assert_close(best, logprobs.topk(3).values, rtol=1e-4, atol=1e-4)
    # Where two logits are equal but for rounding, the rank may be one off.
    ranks = 1 + (logprobs > own[:, None]).sum(-1)
    assert (torch.tensor([s.rank for s in scores]) - ranks).abs().max() <= 1
