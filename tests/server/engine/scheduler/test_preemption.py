"""The scheduler's rules, one by one: who leaves when memory runs out, and how."""

from __future__ import annotations

import pytest

from pagetide_server.engine.swap_cost import cheaper_mode

from .requests import config, names, request, rows_of


def test_the_newest_gives_way_and_a_step_that_preempted_admits_nobody(engine):
    made = engine(request("a", 4), request("b", 4), request("c", 4), request("d", 4), num_blocks=5, max_num_seqs=3)
    steps = made.run()
    preempting = [step for step in steps if step.preempted]
    assert preempting
    assert all(not step.started and not step.swap_in for step in preempting)
    assert [name for step in steps for name in names(step.started)] == ["a", "b", "c", "d"]
    assert names(preempting[0].preempted) == ["c"]
    # The oldest is never preempted.
    assert "a" not in [name for step in steps for name in names(step.preempted)]
    assert len(made.ended) == 4


def test_a_prompt_under_way_takes_what_memory_there_is_before_anybody_gives_way(engine):
    made = engine(
        request("b", 3, priority=1, max_tokens=20),
        request("c", 3, priority=1, max_tokens=20),
        num_blocks=13,
        max_num_batched_tokens=10,
        policy="priority",
    )
    made.step()
    made.scheduler.add(request("a", 40, max_tokens=1))
    steps = [made.step() for _ in range(6)]
    assert [count for step in steps for name, count in rows_of(step) if name == "a"] == [8, 8, 8, 8, 4, 4]
    assert [names(step.preempted) for step in steps] == [[]] * 5 + [["c"]]
    made.run()


def test_memory_for_answers_about_to_join_is_kept(engine):
    made = engine(request("a", 10, n=3, max_tokens=2), max_num_batched_tokens=8, num_blocks=6)
    made.step()
    made.scheduler.add(request("b", 4))
    assert rows_of(made.step()) == [("a", 2)]
    assert not any(step.preempted for step in made.run())


@pytest.mark.parametrize(
    ("mode", "swap_blocks", "counts"),
    [
        pytest.param("swap", 32, (True, False), id="swap"),
        pytest.param("recompute", 32, (False, True), id="recompute"),
        pytest.param("swap", 0, (False, True), id="swap without swap space recomputes"),
        pytest.param("auto", 32, (True, False), id="auto with a fast bus swaps"),
    ],
)
def test_preemption_mode(engine, mode, swap_blocks, counts):
    made = engine(
        request("a", 4, max_tokens=12),
        request("b", 4, max_tokens=12),
        num_blocks=5,
        preemption_mode=mode,
        num_swap_blocks=swap_blocks,
    )
    made.run()
    stats = made.scheduler.stats()
    assert (stats.preemptions_swap > 0, stats.preemptions_recompute > 0) == counts
    assert (stats.swapped_out_blocks > 0, stats.swapped_in_blocks > 0) == (counts[0], counts[0])
    assert stats.block_allocation_failures > 0
    made.check_empty()


@pytest.mark.parametrize(
    ("constants", "blocks", "tokens", "cheaper"),
    [
        # One block is 4 tokens; out and in again: 2 * 1 * 4 * 100 / 1000 = 0.8 s.
        pytest.param({"recompute_tokens_per_second": 4}, 1, 4, "swap", id="0.8 s to copy, 1 s to compute"),
        pytest.param({"recompute_tokens_per_second": 6}, 1, 4, "recompute", id="0.8 s to copy, 0.67 s to compute"),
        pytest.param({"recompute_tokens_per_second": 5}, 1, 4, "recompute", id="even: recompute"),
        pytest.param({"recompute_tokens_per_second": 4}, 3, 4, "recompute", id="most of it is shared"),
        pytest.param({"recompute_tokens_per_second": 4}, 3, 0, "recompute", id="all of it is shared"),
    ],
)
def test_the_cheaper_mode(constants, blocks, tokens, cheaper):
    made = config(kv_bytes_per_token=100, swap_bytes_per_second=1000, **constants)
    assert cheaper_mode(made, blocks=blocks, tokens=tokens) == cheaper


def test_a_swapped_sequence_comes_back_before_a_new_request_starts(engine):
    made = engine(
        request("a", 4, max_tokens=12),
        request("b", 4, max_tokens=12),
        num_blocks=5,
        max_num_seqs=2,
        preemption_mode="swap",
    )
    while not made.scheduler.stats().swapped:
        made.step()
    made.scheduler.add(request("c", 1, max_tokens=1))
    steps = made.run()
    came_back = next(i for i, step in enumerate(steps) if step.swap_in)
    assert next(i for i, step in enumerate(steps) if step.started) >= came_back


def test_auto_recomputes_what_other_answers_keep_alive(engine):
    """A copy of three blocks would take 0.48 ms; only one token of the prompt is not shared: 0.1 ms."""
    made = engine(
        request("a", 9, n=2, max_tokens=8, priority=1),
        policy="priority",
        max_num_seqs=2,
        preemption_mode="auto",
        swap_bytes_per_second=6.5e9,
    )
    made.step()
    made.scheduler.add(request("b"))
    made.step()
    stats = made.scheduler.stats()
    assert (stats.preemptions_swap, stats.preemptions_recompute) == (0, 1)
    made.run()


def test_a_prompt_swapped_out_half_way_comes_back_to_where_it_was(engine):
    """Meanwhile another request has computed the same prompt to its end."""
    prompt = list(range(16))
    made = engine(
        request("a", prompt, priority=1),
        policy="priority",
        max_num_seqs=1,
        max_num_batched_tokens=8,
        preemption_mode="swap",
    )
    made.step()
    made.scheduler.add(request("b", prompt))
    steps = made.run()
    assert sum(len(step.swap_out) for step in steps) == 2
    assert set(made.ended) == {("a", 0), ("b", 0)}


def test_what_is_still_on_the_device_is_not_copied_back(engine):
    made = engine(
        request("a", 4, max_tokens=9),
        request("b", [1, 2, 3, 4, 5, 6, 7, 8], max_tokens=8),
        num_blocks=5,
        preemption_mode="swap",
    )
    steps = made.run()
    out, back = sum(len(s.swap_out) for s in steps), sum(len(s.swap_in) for s in steps)
    assert 0 < back < out
