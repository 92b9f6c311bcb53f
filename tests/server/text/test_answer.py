"""Answers: what is shown of them when, how they end, and which are best."""

from __future__ import annotations

import pytest

from pagetide_server.text.answer import Answer, Delta, best, joined
from pagetide_server.wire.messages import SamplingParams, SequenceOutput, TokenLogprobs


def outputs(ids, finish_reason="length", stop_token_id=None):
    """One output a token; the last one ends the answer."""
    found = [
        SequenceOutput(request_id="r", token_ids=[i], logprobs=[TokenLogprobs(i, -0.5 * n, 1)])
        for n, i in enumerate(ids, 1)
    ]
    found[-1].finish_reason, found[-1].stop_token_id = finish_reason, stop_token_id
    return found


def taken(answer, found):
    return [delta for output in found if (delta := answer.take(output)) is not None]


def answer_of(tokenizer, **params):
    return Answer(3, tokenizer, [5], SamplingParams(**params))


def test_held_back_tokens_stay_with_their_text(byte_level):
    ids = byte_level.encode("abcd", add_special_tokens=False)
    answer = answer_of(byte_level, stop=("abX",))
    deltas = taken(answer, outputs(ids))
    assert all(delta.text for delta in deltas)
    whole = joined(3, deltas)
    assert (whole.text, whole.token_ids, whole.finish_reason) == ("abcd", ids, "length")
    assert [e.token_id for e in whole.logprobs] == ids
    assert answer.generated == len(ids)


def test_nothing_comes_behind_a_stop_string(byte_level):
    a, b, c = (byte_level.encode(f"x{letter}", add_special_tokens=False)[-1] for letter in "abc")
    answer = answer_of(byte_level, stop=("b",))
    deltas = taken(answer, outputs([a, b, c, c]))
    whole = joined(3, deltas)
    assert (whole.text, whole.token_ids, whole.finish_reason, whole.stop_reason) == ("a", [a, b], "stop", "b")
    assert answer.generated == 2


@pytest.mark.parametrize(("included", "text"), [(False, "a"), (True, "ab")], ids=["left out", "included"])
def test_a_stop_tokens_text_is_included_only_if_asked_for(byte_level, included, text):
    a, b = (byte_level.encode(f"x{letter}", add_special_tokens=False)[-1] for letter in "ab")
    answer = answer_of(byte_level, stop_token_ids=(b,), include_stop_str_in_output=included)
    whole = joined(3, taken(answer, outputs([a, b], "stop", b)))
    assert (whole.text, whole.token_ids, whole.stop_reason) == (text, [a, b], b)


def test_the_models_own_end_is_no_reason_to_tell(byte_level):
    a, end = (byte_level.encode(f"x{letter}", add_special_tokens=False)[-1] for letter in "ab")
    whole = joined(3, taken(answer_of(byte_level, stop_token_ids=(a + 1000,)), outputs([a, end], "stop", end)))
    assert (whole.finish_reason, whole.stop_reason) == ("stop", None)


def test_an_answer_without_a_token_ends_too(byte_level):
    (delta,) = taken(answer_of(byte_level), [SequenceOutput(request_id="r", finish_reason="length")])
    assert delta == Delta(3, "", [], [], "length")


@pytest.mark.parametrize(
    ("n", "best_of", "chosen"),
    [
        pytest.param(2, 3, [1, 2, 5, 3], id="two of three for each of two prompts"),
        pytest.param(1, 6, [5], id="one of six"),
        pytest.param(3, 3, [0, 1, 2, 3, 4, 5], id="nothing to choose: in their order"),
        pytest.param(6, None, [0, 1, 2, 3, 4, 5], id="no choice asked for"),
    ],
)
def test_the_best_answers_of_each_prompt_come_first(n, best_of, chosen):
    means = [-3.0, -1.0, -2.0, -0.5, -4.0, -0.1]
    answers = [Delta(i, "", [], [TokenLogprobs(0, mean, 1)] * 2) for i, mean in enumerate(means)]
    assert [answer.index for answer in best(answers, n, best_of)] == chosen


def test_an_answer_without_tokens_is_never_the_best():
    empty, some = Delta(0, "", [], []), Delta(1, "", [0], [TokenLogprobs(0, -50.0, 1)])
    assert best([empty, some], 1, 2) == [some]
