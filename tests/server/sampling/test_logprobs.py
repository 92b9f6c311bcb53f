import json
import math
from collections.abc import Callable

import msgspec
import pytest
import torch

from pagetide_server.engine.sampling.logprobs import FLOOR, token_logprobs
from pagetide_server.engine.sampling.sampler import Sampler
from pagetide_server.engine.sequence import Sequence

MakeSequence = Callable[..., Sequence]
INF = math.inf


def random_logits(rows: int) -> torch.Tensor:
    return torch.randn(rows, 50, generator=torch.Generator().manual_seed(2)) * 4


def test_they_are_log_softmax_with_rank_and_alternatives() -> None:
    logits = random_logits(20)
    expected = torch.log_softmax(logits.double(), -1)
    for row, entry in enumerate(token_logprobs(logits, list(range(20)), 5)):
        assert entry.token_id == row
        assert entry.logprob == pytest.approx(expected[row, row].item(), abs=1e-5)
        assert entry.rank == 1 + int((expected[row] > expected[row, row]).sum())
        best = expected[row].topk(5)
        assert entry.top_ids == best.indices.tolist()
        assert entry.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-5)


def test_equal_logits_come_in_the_order_of_their_ids() -> None:
    logits = torch.zeros(1, 50)
    logits[0, [9, 3, 30]] = 1.0
    (entry,) = token_logprobs(logits, [3], 2)
    assert (entry.top_ids, entry.rank) == ([3, 9], 1)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([0.0, -INF, -INF], id="all but one impossible"),
        pytest.param([INF, 0.0, 0.0], id="infinite"),
        pytest.param([math.nan, 0.0, 0.0], id="NaN"),
        pytest.param([-INF, -INF, -INF], id="nothing possible"),
        pytest.param([1e30, -1e30, 0.0], id="enormous differences"),
    ],
)
def test_nothing_infinite_or_nan_comes_out(values: list[float]) -> None:
    for token in range(3):
        (entry,) = token_logprobs(torch.tensor([values]), [token], 3)
        for number in (entry.logprob, *entry.top_logprobs):
            assert FLOOR <= number <= 0
        json.dumps(msgspec.to_builtins(entry), allow_nan=False)


def test_more_alternatives_than_tokens_are_all_tokens() -> None:
    (entry,) = token_logprobs(torch.zeros(1, 4), [0], 20)
    assert sorted(entry.top_ids) == [0, 1, 2, 3]


def test_each_row_gets_what_it_asked_for(make: MakeSequence) -> None:
    rows = [make(temperature=0.0, logprobs=n) for n in (None, 0, 3, 1)]
    found = Sampler(50, "cpu").sample(random_logits(4), rows).logprobs
    assert [entry and len(entry.top_ids) for entry in found] == [None, 0, 3, 1]


@pytest.mark.parametrize(
    "params",
    [
        pytest.param({"temperature": 0.1}, id="temperature"),
        pytest.param({"top_k": 2}, id="cuts"),
        pytest.param({"logit_bias": {7: 100.0}}, id="bias"),
        pytest.param({"repetition_penalty": 2.0, "frequency_penalty": 2.0}, id="penalties"),
    ],
)
def test_they_are_the_models_own_whatever_the_request_changes(make: MakeSequence, params: dict) -> None:
    logits = random_logits(2)
    raw = torch.log_softmax(logits, -1)
    rows = [make([1], [2, 3], seed=0, logprobs=0, **params), make(logprobs=0)]
    result = Sampler(50, "cpu").sample(logits, rows)
    for row, entry in enumerate(result.logprobs):
        assert entry is not None
        assert entry.token_id == result.token_ids[row]
        assert entry.logprob == pytest.approx(raw[row, entry.token_id].item(), abs=1e-5)


def test_prompt_logprobs_score_the_tokens_that_follow() -> None:
    logits = random_logits(30)
    raw = torch.log_softmax(logits, -1)
    entries = Sampler(50, "cpu").prompt_logprobs(logits, list(range(30)), 1)
    assert [entry.logprob for entry in entries] == pytest.approx(raw.diagonal().tolist(), abs=1e-5)
