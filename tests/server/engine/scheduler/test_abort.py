"""The scheduler's rules, one by one: requests that are taken back, or fail."""

from __future__ import annotations

import pytest

from .requests import request


def waiting(made):
    assert made.scheduler.stats().waiting == 1


def in_the_middle_of_the_prompt(made):
    made.step()
    assert made.scheduler.stats().running == 1


def decoding(made):
    for _ in range(6):
        made.step()


def swapped(made):
    decoding(made)
    made.scheduler.add(request("better", priority=-1, max_tokens=1))
    made.step()
    assert made.scheduler.stats().swapped


@pytest.mark.parametrize("reach", [waiting, in_the_middle_of_the_prompt, decoding, swapped])
@pytest.mark.parametrize("index", [None, 0, 1])
def test_abort_frees_at_once(engine, reach, index):
    made = engine(
        request("a", 12, n=2, max_tokens=20),
        max_num_seqs=2,
        max_num_batched_tokens=5,
        policy="priority",
        preemption_mode="swap",
    )
    reach(made)
    ended = made.scheduler.abort("a", index)
    made.scheduler.check_integrity()
    assert sorted(s.index for s in ended) == ([0, 1] if index is None else [index])
    assert made.scheduler.abort("a", index) == []
    if index is None:
        assert made.scheduler.stats().blocks_swapped == 0
        assert made.scheduler.has_work() == (reach is swapped and not made.ended)
    made.run()
    assert {key for key in made.ended if key[0] == "a"} == {("a", i) for i in (0, 1) if index not in (None, i)}
    made.check_empty()


def test_abort_of_an_unknown_request_ends_nothing(engine):
    made = engine(request("a", n=2))
    assert made.scheduler.abort("b") == []
    assert made.scheduler.abort("a", 2) == []
    assert made.scheduler.stats().waiting == 1


@pytest.mark.parametrize("index", [None, 0, 1])
def test_a_sequence_aborted_while_its_step_runs_is_skipped(engine, index):
    made = engine(request("a", 6, n=2), request("b"))
    step = made.plan()
    token_ids = made.memory.execute(step)
    gone = made.scheduler.abort("a", index)
    settled = made.settle(step, token_ids)
    assert not set(map(id, gone)) & {id(each.sequence) for each in settled}
    assert len(settled) == 3 - len(gone)
    made.run()
    made.check_empty()


def test_an_id_may_be_used_again_while_the_step_of_its_aborted_request_runs(engine):
    made = engine(request("a", 6))
    step = made.plan()
    token_ids = made.memory.execute(step)
    made.scheduler.abort("a")
    made.scheduler.add(request("a", 3))
    assert made.settle(step, token_ids) == []
    made.run()
    assert made.ended["a", 0].sequence.prompt_len == 3


def test_fail_ends_a_sequence_and_those_that_wait_for_it(engine):
    made = engine(request("a", 12, n=2), request("b"), max_num_batched_tokens=8)
    step = made.step()
    assert len(made.scheduler.fail(step.rows[0].sequence)) == 2
    assert made.scheduler.fail(step.rows[0].sequence) == []
    made.run()
    assert set(made.ended) == {("b", 0)}
    made.check_empty()
