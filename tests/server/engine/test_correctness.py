"""Greedy answers equal transformers' `generate` token for token in float32, however the engine is set up."""

from __future__ import annotations

import functools
import random
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from pagetide_server import LLM, SamplingParams, factory
from pagetide_server.model.runner import Runner
from pagetide_server.wire.messages import Structure

NEW_TOKENS = 20
LENGTHS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 23, 31, 32, 33, 47, 64, 65, 90, 121)
FEW = (1, 17, 33, 70)
FAMILIES = ("llama", "qwen3", "gemma3")

Answers = list[tuple[int, ...]]


@pytest.fixture(scope="module", autouse=True)
def _poisoned(poisoned_memory):
    """For every engine here, those of fixtures included."""


def prompts_for(vocab_size: int, lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    """Prompts of many lengths around block borders; the last ones share a beginning of 40 tokens."""
    rng = random.Random(7)
    prompts = [[rng.randrange(3, vocab_size) for _ in range(n)] for n in lengths]
    shared = prompts[-1][:40]
    return prompts + [shared + [rng.randrange(3, vocab_size) for _ in range(n)] for n in (1, 8, 30)]


@functools.cache
def network(folder: str) -> Any:
    """transformers' own model."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@functools.cache
def expected(folder: str, lengths: tuple[int, ...] = LENGTHS) -> Answers:
    """What transformers generates for each prompt, one at a time."""
    model = network(folder)
    return [generated(model, prompt, NEW_TOKENS) for prompt in prompts_for(model.config.vocab_size, lengths)]


def generated(model: Any, prompt: list[int], new_tokens: int) -> tuple[int, ...]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False, eos_token_id=None
    )
    return tuple(out[0, len(prompt) :].tolist())


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


@pytest.fixture
def ahead(monkeypatch):
    """Engines begin a step before the tokens of the one before are known, as on a GPU; counts how often."""
    begun = []
    execute = Runner.execute

    def counted(runner, step, carried=None):
        if carried is not None:
            begun.append(len(step.rows))
        return execute(runner, step, carried)

    monkeypatch.setattr(factory, "runs_ahead", lambda loaded: True)
    monkeypatch.setattr(Runner, "execute", counted)
    return begun


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
    monkeypatch.setattr(factory, "runs_ahead", lambda loaded: False)
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


# ---- seeded sampling

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


# ---- state beside the KV cache: structures, penalties, scores

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


@pytest.fixture(scope="module")
def undisturbed(tiny_model) -> list[list[Any]]:
    with LLM(str(tiny_model("llama")), dtype="float32", kv_cache_memory_gib=0.05, max_model_len=256) as llm:
        found = demanding_answers(llm)
        assert llm.stats.preemptions_swap + llm.stats.preemptions_recompute == 0
    assert all(12 <= len(text) <= 18 for text, _, _ in found[0])
    return found


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
