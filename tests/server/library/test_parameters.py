"""The `LLM` class: what parameters do."""

from __future__ import annotations

import json
import shutil
from statistics import fmean

import pytest

from pagetide_server import LLM, SamplingParams
from pagetide_server.results import GenerationError
from pagetide_server.wire.messages import Structure

from .calls import SETTINGS, greedy, regex


def words(llm) -> list[int]:
    """Tokens of two or more letters: a random model says nothing that can be read by itself."""
    texts = {i: llm._tokenizer.decode([i]) for i in range(llm.vocab_size)}
    return [i for i, text in texts.items() if len(text) > 1 and text.isascii() and text.isalpha()]


def test_text_stops_across_tokens(llm):
    likely = {"logit_bias": dict.fromkeys(words(llm), 100.0), "max_tokens": 40}
    (whole,) = llm.generate([9, 8, 7], greedy(**likely))
    text, ids = whole.outputs[0].text, whole.outputs[0].token_ids
    # A stop string that begins inside one token and ends inside the next.
    border = len(llm._tokenizer.decode(ids[:6]))
    stop = text[border - 1 : border + 1]
    cut = text.index(stop)
    for given in ((stop,), stop, [stop, "never"]):
        (result,) = llm.generate([9, 8, 7], greedy(**likely, stop=given))
        assert (result.outputs[0].text, result.outputs[0].finish_reason) == (text[:cut], "stop")
        assert len(result.outputs[0].token_ids) <= 7
    (included,) = llm.generate([9, 8, 7], greedy(**likely, stop=stop, include_stop_str_in_output=True))
    assert included.outputs[0].text == text[: cut + len(stop)]


def test_best_of_returns_the_likeliest(llm):
    drawn = {"temperature": 1.0, "seed": 5, "max_tokens": 5, "ignore_eos": True}
    (every,) = llm.generate([5, 6], SamplingParams(n=6, logprobs=0, **drawn))
    (best,) = llm.generate([5, 6], SamplingParams(n=2, best_of=6, **drawn))
    ranked = sorted(every.outputs, key=lambda o: -fmean(entry.logprob for entry in o.logprobs))
    assert [o.token_ids for o in best.outputs] == [o.token_ids for o in ranked[:2]]
    assert [(o.index, o.logprobs) for o in best.outputs] == [(0, None), (1, None)]


def test_bad_words_do_not_come(llm):
    likely = {"logit_bias": dict.fromkeys(words(llm), 100.0), "max_tokens": 8}
    (plain,) = llm.generate([5, 6, 7], greedy(**likely))
    word = llm._tokenizer.decode(plain.outputs[0].token_ids[2:3])
    assert word in plain.outputs[0].text
    (without,) = llm.generate([5, 6, 7], greedy(**likely, bad_words=[word]))
    assert word not in without.outputs[0].text


def test_a_prompt_may_only_be_scored(llm):
    (result,) = llm.generate([5, 6, 7], SamplingParams(max_tokens=0, prompt_logprobs=2))
    none, *scores = result.prompt_logprobs
    assert none is None
    assert [s.token_id for s in scores] == [6, 7]
    assert all(len(s.top_ids) == 2 for s in scores)
    assert (result.outputs[0].token_ids, result.outputs[0].finish_reason) == ([], "length")


def test_a_prompt_that_fills_the_window_may_only_be_scored(llm):
    params = SamplingParams(max_tokens=0, prompt_logprobs=1)
    assert len(llm.generate([[5] * 512], params)[0].prompt_logprobs) == 512


def test_a_structured_answer(llm):
    wanted = SamplingParams(structure=Structure(kind="choice", value='["yes", "no"]'), max_tokens=20, seed=1)
    results = llm.generate([[5], [6], [7]], wanted)
    assert {r.outputs[0].text for r in results} <= {"yes", "no"}
    assert {r.outputs[0].finish_reason for r in results} == {"stop"}
    with pytest.raises(GenerationError, match="json"):
        llm.generate([5], SamplingParams(structure=Structure(kind="json", value='{"type": "nothing"}')))


@pytest.mark.parametrize(
    ("stated", "ends"),
    [
        pytest.param([5, -1, 10**9], [5], id="those without a logit are left out"),
        pytest.param([], [2], id="none: the tokenizer's own"),
        pytest.param(5, [5], id="another one than the tokenizer's own"),
    ],
)
def test_end_tokens_of_the_model(tiny_model, tmp_path, stated, ends):
    folder = shutil.copytree(tiny_model("llama"), tmp_path / "m")
    generation = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(generation | {"eos_token_id": stated}))
    with LLM(str(folder), **SETTINGS) as llm:
        (structured,) = llm.generate([[5, 6]], SamplingParams(structure=regex("[a-z]{3}"), max_tokens=9, seed=1))
        assert structured.outputs[0].finish_reason == "stop"
        assert [structured.outputs[0].token_ids[-1]] == ends
        likely = greedy(logit_bias={ends[0]: 100.0}, ignore_eos=False)
        assert len(llm.generate([[5, 6]], likely)[0].outputs[0].token_ids) == 1
        held_off = greedy(logit_bias={ends[0]: 100.0}, ignore_eos=False, min_tokens=3)
        assert all(len(r.outputs[0].token_ids) == 4 for r in llm.generate([[5], [6]], held_off))


def test_the_end_of_a_structure_is_not_repeated_for_min_tokens(llm):
    choice = Structure(kind="choice", value='["a"]')
    (result,) = llm.generate([[5, 6]], SamplingParams(structure=choice, min_tokens=5, max_tokens=9))
    assert (result.outputs[0].text, result.outputs[0].finish_reason) == ("a", "stop")
    assert len(result.outputs[0].token_ids) == 2


def test_a_stop_token_is_written_where_that_is_asked_for(llm):
    (plain,) = llm.generate("The quick", greedy(max_tokens=4))
    last = plain.outputs[0].token_ids[2]
    stops = {"max_tokens": 4, "stop_token_ids": (last,)}
    (without,) = llm.generate("The quick", greedy(**stops))
    (written,) = llm.generate("The quick", greedy(**stops, include_stop_str_in_output=True, skip_special_tokens=False))
    assert without.outputs[0].token_ids == written.outputs[0].token_ids
    assert written.outputs[0].text.startswith(without.outputs[0].text)
    assert len(written.outputs[0].text) > len(without.outputs[0].text)
