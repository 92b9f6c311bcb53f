import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagetide_server.engine.sampling.penalties import adjust, changes_logits
from pagetide_server.engine.sampling.sampler import Sampler
from pagetide_server.engine.sequence import Sequence
from pagetide_server.wire.messages import AddRequest, SamplingParams, Structure

EOS = frozenset({1, 2})
MakeSequence = Callable[..., Sequence]
FORBIDDEN = float("-inf")


def expected(logits: list[float], prompt: list[int], answer: list[int], params: SamplingParams) -> list[float]:
    """The formulas, token by token."""
    result = list(logits)
    for token in {*prompt, *answer}:
        rate = params.repetition_penalty
        result[token] = result[token] / rate if result[token] > 0 else result[token] * rate
    for token, count in Counter(answer).items():
        result[token] -= count * params.frequency_penalty + params.presence_penalty
    for token, bias in params.logit_bias.items():
        result[token] += bias
    return result


TOKENS = st.lists(st.integers(0, 9), max_size=12)


@given(
    st.lists(st.floats(-5, 5, width=32), min_size=10, max_size=10),
    TOKENS,
    TOKENS,
    st.fixed_dictionaries(
        {},
        optional={
            "repetition_penalty": st.floats(0.5, 2),
            "frequency_penalty": st.floats(-2, 2),
            "presence_penalty": st.floats(-2, 2),
            "logit_bias": st.dictionaries(st.integers(0, 9), st.floats(-100, 100), max_size=4),
        },
    ),
)
def test_penalties_follow_their_formulas(
    logits: list[float], prompt: list[int], answer: list[int], given_params: dict[str, Any]
) -> None:
    params = SamplingParams(**given_params)
    sequence = Sequence(AddRequest(request_id="r", prompt_token_ids=prompt, params=params, arrival=0.0), 0)
    sequence.tokens += answer
    rows = torch.tensor([[9.0] * 10, logits])
    adjust(rows, [(1, sequence)], EOS)
    assert rows[0].tolist() == [9.0] * 10
    assert rows[1].tolist() == pytest.approx(expected(logits, prompt, answer, params), abs=1e-4)


@pytest.mark.parametrize(
    ("params", "answer", "banned"),
    [
        pytest.param({"bad_words_token_ids": ((4,),)}, [], {4}, id="a bad word of one token never comes"),
        pytest.param({"bad_words_token_ids": ((4, 5),)}, [7, 4], {5}, id="a longer one is not completed"),
        pytest.param({"bad_words_token_ids": ((4, 5),)}, [4, 7], set(), id="its end alone may come"),
        pytest.param({"bad_words_token_ids": ((3, 4, 5),)}, [4], set(), id="the prompt does not begin one"),
        pytest.param({"bad_words_token_ids": ((6, 6, 6), (8,))}, [6, 6], {6, 8}, id="several at once"),
        pytest.param({"min_tokens": 2}, [7], {1, 2}, id="no end token before min_tokens"),
        pytest.param({"min_tokens": 2}, [7, 7], set(), id="from then on any"),
        pytest.param({"min_tokens": 2, "stop_token_ids": (9,)}, [], {1, 2, 9}, id="nor a stop token"),
        pytest.param({"min_tokens": 2, "ignore_eos": True}, [], set(), id="an ignored end token ends nothing"),
        pytest.param({"allowed_token_ids": (4, 5)}, [], set(range(10)) - {4, 5}, id="only what is allowed"),
        pytest.param(
            {"allowed_token_ids": (4, 5), "bad_words_token_ids": ((4,),)}, [], set(range(10)) - {5}, id="less bad words"
        ),
    ],
)
def test_bans(make: MakeSequence, params: dict[str, Any], answer: list[int], banned: set[int]) -> None:
    rows = torch.zeros(1, 10)
    adjust(rows, [(0, make([3], answer, **params))], EOS)
    assert {i for i, value in enumerate(rows[0].tolist()) if value == FORBIDDEN} == banned


def test_rows_without_wishes_are_left_alone(make: MakeSequence) -> None:
    logits = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    rows = [make(temperature=0.0), make([1], [2], temperature=0.0, frequency_penalty=2.0)] * 2
    Sampler(10, "cpu").sample(logits, rows)
    assert torch.equal(logits[::2], before[::2])
    assert not torch.equal(logits[1::2], before[1::2])


@pytest.mark.parametrize(
    ("params", "changes"),
    [
        pytest.param({}, False, id="nothing"),
        pytest.param(
            {"temperature": 0.3, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "logprobs": 2}, False, id="cuts only"
        ),
        pytest.param({"logit_bias": {1: 0.5}}, True, id="bias"),
        pytest.param({"allowed_token_ids": (1,)}, True, id="allowed tokens"),
        pytest.param({"repetition_penalty": 0.9}, True, id="reward for repetition"),
        pytest.param({"presence_penalty": -0.1}, True, id="reward for presence"),
        pytest.param({"ignore_eos": True}, False, id="an ignored end"),
        pytest.param(
            {"ignore_eos": True, "structure": Structure(kind="json_object")}, True, id="an ignored end of a structure"
        ),
    ],
)
def test_it_is_known_who_pays(params: dict[str, Any], changes: bool) -> None:
    assert changes_logits(SamplingParams(**params)) is changes


def test_a_bias_for_every_token_costs_no_more_than_a_forward(make: MakeSequence) -> None:
    """One request would hold up all others otherwise: a tensor for each entry took seconds a token."""
    bias = {i: 1.0 + i % 3 for i in range(100_000)}
    logits = torch.zeros(1, 100_000)
    started = time.process_time()
    adjust(logits, [(0, make(logit_bias=bias))], frozenset())
    assert time.process_time() - started < 0.5
    assert logits[0].tolist() == list(bias.values())


def test_siblings_of_one_row_are_changed_apart(make: MakeSequence) -> None:
    logits = torch.zeros(1, 10).expand(3, -1)
    rows = [make(index=i, temperature=0.0, logit_bias={i: 5.0}) for i in range(3)]
    assert Sampler(10, "cpu").sample(logits, rows).token_ids == [0, 1, 2]
