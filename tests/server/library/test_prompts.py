"""The `LLM` class: prompts in many forms, results in their order."""

from __future__ import annotations

import numpy as np
import pytest

from pagetide_spec.errors import SettingError

from .calls import GREEDY, greedy


def test_results_come_in_the_order_of_the_prompts_whatever_their_length(llm):
    prompts = [[5] * n for n in (40, 3, 90, 1, 17)]
    params = [greedy(max_tokens=n) for n in (9, 1, 3, 12, 2)]
    results = llm.generate(prompts, params)
    assert [r.prompt_token_ids for r in results] == prompts
    assert [len(r.outputs[0].token_ids) for r in results] == [9, 1, 3, 12, 2]
    assert {r.outputs[0].finish_reason for r in results} == {"length"}
    for result in results:
        times = result.metrics
        assert 0 < times.arrival <= times.scheduled <= times.first_token <= times.finished


def test_text_and_ids_may_be_mixed(llm):
    text = "The quick brown fox"
    ids = llm._tokenizer.encode(text)
    by_text, by_ids, one, alone = (
        *llm.generate([text, ids], GREEDY),
        *llm.generate(text, GREEDY),
        *llm.generate(ids, GREEDY),
    )
    assert (by_text.prompt, by_ids.prompt) == (text, None)
    answers = {tuple(r.outputs[0].token_ids) for r in (by_text, by_ids, one, alone)}
    assert len(answers) == 1
    assert by_text.outputs[0].text == by_ids.outputs[0].text


def test_prompts_under_vllms_names_are_the_same_prompts(llm):
    text = "The quick brown fox"
    ids = llm._tokenizer.encode(text)
    named = llm.generate([{"prompt": text}, {"prompt_token_ids": ids}], GREEDY) + llm.generate({"prompt": text}, GREEDY)
    plain = llm.generate(text, GREEDY)[0].outputs[0].token_ids
    assert [r.outputs[0].token_ids for r in named] == [plain] * 3


@pytest.mark.parametrize("prompt", [{}, {"text": "a"}, {"prompt": "a", "prompt_token_ids": [5]}])
def test_other_names_are_refused(llm, prompt):
    with pytest.raises(SettingError, match="prompt or prompt_token_ids"):
        llm.generate([prompt])


def test_ids_of_numpy_and_tuples_are_ids(llm):
    numpy = pytest.importorskip("numpy")
    expected = llm.generate([5, 6, 7], GREEDY)[0].outputs
    assert llm.generate(numpy.array([5, 6, 7]), GREEDY)[0].outputs == expected
    assert llm.generate([(5, 6, 7)], greedy(temperature=numpy.float64(0)))[0].outputs == expected


def test_no_prompts_no_results(llm):
    assert llm.generate([]) == []


def test_a_second_call_finds_the_first_ones_prompt(llm):
    prompt = list(range(10, 80))
    llm.generate(prompt, GREEDY)
    assert llm.generate(prompt, GREEDY)[0].metrics.cached_tokens == 64


@pytest.mark.parametrize(
    "prompts",
    [
        pytest.param(lambda: iter([5, 6]), id="an iterator of ids"),
        pytest.param(lambda: iter([[5, 6]]), id="an iterator of prompts"),
        pytest.param(lambda: [iter([5, 6])], id="a list of iterators"),
    ],
)
def test_iterators_are_read_once(llm, prompts):
    assert [r.prompt_token_ids for r in llm.generate(prompts(), GREEDY)] == [[5, 6]]


def test_rows_of_an_array_are_prompts(llm):
    results = llm.generate(np.array([[5, 6], [7, 8]]), GREEDY)
    assert [r.prompt_token_ids for r in results] == [[5, 6], [7, 8]]
