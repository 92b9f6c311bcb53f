"""The scheduler's rules, one by one: what is refused, and what just fits."""

from __future__ import annotations

import pytest

from pagetide_server.engine.scheduler import RequestRefused, Scheduler

from .requests import config, request


@pytest.mark.parametrize(
    ("changes", "prompt", "params", "words"),
    [
        pytest.param({}, 64, {}, ["64 tokens", "max_model_len of 64"], id="a prompt that fills the window"),
        pytest.param({}, 65, {"max_tokens": 0}, ["65 tokens", "max_model_len of 64"], id="a longer one only to score"),
        pytest.param({"num_blocks": 4}, 10, {"max_tokens": 7}, ["17 tokens", "holds 16"], id="prompt and answer"),
        pytest.param({"num_blocks": 4}, 10, {"max_tokens": None}, ["64 tokens", "holds 16"], id="an open answer"),
        pytest.param({"num_blocks": 4}, 10, {"max_tokens": 99}, ["64 tokens", "holds 16"], id="clipped to the window"),
        pytest.param({}, 5, {"n": 5}, ["n is 5", "max_num_seqs is 4"], id="more answers than slots"),
        pytest.param({}, 5, {"n": 2, "best_of": 5}, ["best_of is 5", "max_num_seqs is 4"], id="best_of beyond slots"),
        pytest.param(
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 8},
            9,
            {},
            ["9 tokens", "max_num_batched_tokens of 8", "enable_chunked_prefill"],
            id="a prompt longer than a step that may not be cut",
        ),
        pytest.param({}, 0, {}, ["no token"], id="an empty prompt"),
        pytest.param({}, [1, -2], {}, ["-2"], id="a negative token id"),
        pytest.param({}, [1, 2**32], {}, ["4294967296"], id="a token id beyond 32 bits"),
    ],
)
def test_what_can_never_run_is_refused_on_arrival(changes, prompt, params, words):
    scheduler = Scheduler(config(**changes))
    with pytest.raises(RequestRefused) as refusal:
        scheduler.add(request("a", prompt, **params))
    assert refusal.value.kind == "invalid"
    for word in words:
        assert word in str(refusal.value)
    assert not scheduler.has_work()


@pytest.mark.parametrize(
    ("changes", "prompt", "params", "length"),
    [
        pytest.param({}, 63, {"max_tokens": None}, 64, id="one token less than the window"),
        pytest.param({}, 64, {"max_tokens": 0}, 64, id="the whole window only to score"),
        pytest.param({"num_blocks": 4}, 10, {"max_tokens": 6}, 16, id="all of the memory"),
        pytest.param({"num_blocks": 4, "max_model_len": 16}, 10, {"max_tokens": 99}, 16, id="clipped to the window"),
        pytest.param({"max_num_batched_tokens": 1}, 9, {}, 17, id="one token a step"),
        pytest.param({"max_num_batched_tokens": 9, "enable_chunked_prefill": False}, 9, {}, 17, id="a whole step"),
    ],
)
def test_what_just_fits_runs_to_its_end(engine, changes, prompt, params, length):
    made = engine(request("a", prompt, **params), **changes)
    made.run()
    ended = made.ended["a", 0]
    assert (ended.finish_reason, len(ended.sequence.tokens)) == ("length", length)
    made.check_empty()


def test_a_request_id_in_use_is_refused(engine):
    made = engine(request("a"))
    with pytest.raises(RequestRefused, match="in use"):
        made.scheduler.add(request("a"))
    made.run()
    made.scheduler.add(request("a"))


def test_the_waiting_queue_is_bounded(engine):
    made = engine(request("a"), request("b"), request("c"), max_num_seqs=1, max_queue_len=2)
    with pytest.raises(RequestRefused, match="max_queue_len of 2") as refusal:
        made.scheduler.add(request("d"))
    assert refusal.value.kind == "queue_full"
    made.step()
    # The running one has left the queue, but takes the free slot with it.
    with pytest.raises(RequestRefused):
        made.scheduler.add(request("d"))
    made.scheduler.abort("b")
    made.scheduler.add(request("d"))
    made.run()
    assert set(made.ended) == {("a", 0), ("c", 0), ("d", 0)}
