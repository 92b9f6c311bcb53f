"""The scheduler's rules, one by one: what ends an answer."""

from __future__ import annotations

import pytest

from pagetide_server.engine.scheduler import Scheduler

from .requests import config, request


@pytest.mark.parametrize(
    ("params", "token_ids", "end"),
    [
        pytest.param({}, [9, 7], ("stop", 7), id="the model's end"),
        pytest.param({"ignore_eos": True, "max_tokens": 2}, [7, 7], ("length", None), id="ignored"),
        pytest.param({"stop_token_ids": (9,)}, [9], ("stop", 9), id="a stop token"),
        pytest.param({"stop_token_ids": (9,), "ignore_eos": True}, [7, 9], ("stop", 9), id="a stop token all the same"),
        pytest.param({"min_tokens": 2}, [7, 7, 7], ("stop", 7), id="not among the first two"),
        pytest.param({"max_tokens": 3}, [1, 2, 3], ("length", None), id="as long as asked for"),
        pytest.param({"max_tokens": 2}, [1, 7], ("stop", 7), id="a stop at the last moment"),
        pytest.param({"max_tokens": None}, [1, 2, 3, 4, 5], ("length", None), id="the window"),
        pytest.param({"max_tokens": 99}, [1, 2, 3, 4, 5], ("length", None), id="the window before the wish"),
    ],
)
def test_what_ends_a_sequence(params, token_ids, end):
    scheduler = Scheduler(config(max_model_len=10, eos_token_ids=frozenset({7})))
    scheduler.add(request("a", 5, **params))
    ends = []
    for token_id in token_ids:
        assert scheduler.has_work()
        (settled,) = scheduler.settle(scheduler.schedule(), [token_id])
        assert settled.token_id == token_id
        ends.append((settled.finish_reason, settled.stop_token_id))
    assert ends == [(None, None)] * (len(token_ids) - 1) + [end]
    assert not scheduler.has_work()


@pytest.mark.parametrize("n", [1, 3])
def test_a_prompt_that_is_only_scored_samples_nothing(n):
    scheduler = Scheduler(config(max_num_batched_tokens=4))
    scheduler.add(request("a", 6, max_tokens=0, prompt_logprobs=0, n=n))
    assert scheduler.settle(scheduler.schedule(), []) == []
    step = scheduler.schedule()
    assert step.sampling() == []
    settled = scheduler.settle(step, [])
    assert [(s.sequence.index, s.token_id, s.finish_reason) for s in settled] == [(i, None, "length") for i in range(n)]
    assert not scheduler.has_work()


@pytest.mark.parametrize("token_ids", [[], [1, 2]])
def test_settle_wants_one_token_for_each_that_samples(token_ids):
    scheduler = Scheduler(config())
    scheduler.add(request("a"))
    with pytest.raises(ValueError, match="1 tokens"):
        scheduler.settle(scheduler.schedule(), token_ids)
