"""The scheduler's rules, one by one: how a step's tokens are given out."""

from __future__ import annotations

from .requests import request, rows_of


def test_a_long_prompt_is_cut_into_steps_beside_decodes(engine):
    made = engine(request("a", 3), max_num_batched_tokens=8)
    made.step()
    made.scheduler.add(request("b", 18))
    steps = [made.step() for _ in range(4)]
    assert [rows_of(step) for step in steps] == [
        [("a", 1), ("b", 7)],
        [("a", 1), ("b", 7)],
        [("a", 1), ("b", 4)],
        [("a", 1), ("b", 1)],
    ]
    assert [[row.samples for row in step.rows] for step in steps] == [
        [True, False],
        [True, False],
        [True, True],
        [True, True],
    ]


def test_what_a_prompt_leaves_of_the_budget_goes_to_the_next(engine):
    made = engine(request("a", 5), request("b", 9), request("c", 9), max_num_batched_tokens=8)
    assert rows_of(made.step()) == [("a", 5), ("b", 3)]
    assert rows_of(made.step()) == [("a", 1), ("b", 6), ("c", 1)]


def test_a_prompt_that_may_not_be_cut_waits_for_a_step_of_its_own(engine):
    made = engine(
        request("a", 3, max_tokens=3),
        request("b", 8),
        request("c", 1),
        max_num_batched_tokens=8,
        enable_chunked_prefill=False,
    )
    # c would fit beside a, but may not overtake b.
    assert [rows_of(made.step()) for _ in range(4)] == [[("a", 3)], [("a", 1)], [("a", 1)], [("b", 8)]]
    assert rows_of(made.step()) == [("b", 1), ("c", 1)]


def test_the_first_prompt_gets_on_even_if_decodes_could_take_all(engine):
    made = engine(request("a", 7, n=4), max_num_batched_tokens=4, max_num_seqs=5, policy="priority")
    made.step()
    made.scheduler.add(request("b", 6, priority=-1))
    assert rows_of(made.step()) == [("a", 3), ("b", 1)]
    assert rows_of(made.step()) == [("a", 1), ("a", 1), ("a", 1), ("b", 1)]
    made.run()
