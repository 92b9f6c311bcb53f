"""The scheduler's rules, one by one: who starts before whom, and which are preempted for which."""

from __future__ import annotations

import pytest

from pagetide_server.wire.messages import Structure

from .requests import names, request


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        pytest.param("fcfs", ["a", "b", "c", "d"], id="in order of arrival, whatever the priority"),
        pytest.param("priority", ["d", "b", "c", "a"], id="lower value first, then arrival"),
    ],
)
def test_order_of_start(engine, policy, order):
    requests = [request(name, priority=p) for name, p in [("a", 2), ("b", 1), ("c", 1), ("d", -3)]]
    made = engine(*requests, policy=policy, max_num_seqs=1)
    assert [name for step in made.run() for name in names(step.started)] == order


@pytest.mark.parametrize(
    ("changes", "prompt"),
    [
        pytest.param({"max_num_seqs": 2}, 5, id="no slot is free"),
        pytest.param({"num_blocks": 8}, 20, id="no memory is free"),
    ],
)
def test_a_better_request_takes_the_place_of_a_worse_one(engine, changes, prompt):
    made = engine(request("a", priority=1), request("b", priority=2), policy="priority", **changes)
    made.step()
    made.scheduler.add(request("c", prompt, priority=0))
    step = made.step()
    assert names(step.preempted) == ["b"]
    assert names(step.started) == ["c"]
    made.run()
    assert [name for name, _ in made.ended if name != "a"] == ["c", "b"]


@pytest.mark.parametrize(
    ("policy", "priority"),
    [
        pytest.param("priority", 1, id="an equal priority"),
        pytest.param("priority", 2, id="a worse priority"),
        pytest.param("fcfs", 0, id="priorities that do not count"),
    ],
)
def test_nobody_gives_way_to(engine, policy, priority):
    made = engine(request("a", priority=1), policy=policy, max_num_seqs=1)
    made.step()
    made.scheduler.add(request("b", priority=priority))
    assert not any(step.preempted for step in made.run())


def test_nobody_gives_way_in_vain(engine):
    """b alone would give its memory, but that is not enough, and a is better than c."""
    made = engine(
        request("a", 18, priority=0), request("b", 4, priority=2, max_tokens=4), policy="priority", num_blocks=8
    )
    made.step()
    made.scheduler.add(request("c", 20, priority=1))
    assert made.step().preempted == []
    made.run()


def test_what_a_worse_prompt_still_needs_keeps_no_better_request_out(engine):
    made = engine(
        request("a", 4, priority=-1, max_tokens=12),
        request("b", 80, priority=1, max_tokens=2),
        policy="priority",
        num_blocks=26,
        max_num_batched_tokens=9,
        max_model_len=100,
    )
    made.step()
    made.step()
    made.scheduler.add(request("c", 60, priority=0, max_tokens=2))
    step = made.step()
    assert names(step.preempted) == ["b"]
    assert names(step.started) == ["c"]
    made.run()


def test_blocks_that_a_better_request_would_share_are_no_gain(engine):
    """All that b would free are the blocks that c finds already: c has room without it, or not at all."""
    common = list(range(40))
    made = engine(
        request("a", 15, priority=-1, max_tokens=20),
        request("b", [*common, 90], priority=1, max_tokens=8),
        policy="priority",
        num_blocks=25,
        max_model_len=100,
    )
    made.step()
    made.step()
    made.scheduler.add(request("c", [*common, *range(100, 140)][:79], priority=0, max_tokens=1))
    step = made.step()
    assert step.preempted == []
    made.run()


def test_what_running_answers_grow_by_is_not_given_to_a_better_request(engine):
    """In the step in which c comes each answer of a takes a block."""
    made = engine(
        request("a", 4, n=4, priority=-1, max_tokens=12),
        request("b", 16, priority=1, max_tokens=8),
        policy="priority",
        num_blocks=16,
        max_num_seqs=8,
    )
    for _ in range(5):
        made.step()
    made.scheduler.add(request("c", 28, priority=0, max_tokens=1))
    while made.scheduler.has_work():
        step = made.step()
        assert not step.preempted or names(step.started) == ["c"]


@pytest.mark.parametrize("changes", [
    pytest.param({"preemption_mode": "swap"}, id="swapped out"),
    pytest.param({"preemption_mode": "recompute"}, id="recomputed"),
    pytest.param({"preemption_mode": "swap", "enable_prefix_caching": False}, id="swapped out, nothing cached"),
])  # fmt: skip
def test_a_better_request_takes_the_blocks_that_worse_answers_share(engine, changes):
    made = engine(
        request("a", priority=-1, max_tokens=30),
        policy="priority",
        num_blocks=24,
        num_swap_blocks=48,
        max_num_seqs=8,
        **changes,
    )
    made.step()
    made.scheduler.add(request("b", 48, n=3, max_tokens=20, priority=1))
    made.step()
    made.step()
    made.scheduler.add(request("c", 40, priority=0, max_tokens=2))
    step = made.step()
    assert set(names(step.preempted)) == {"b"}
    assert names(step.started) == ["c"]
    made.run()
    assert next(name for name, _ in made.ended) == "c"


def test_an_end_token_ends_a_structure_that_ignores_it(engine):
    """The sampler lets it come only where the structure is finished."""
    answer = request("a", max_tokens=9, ignore_eos=True, structure=Structure(kind="json_object"))
    made = engine(answer, eos_token_ids=frozenset(range(50)))
    made.run()
    assert made.ended["a", 0].finish_reason == "stop"
