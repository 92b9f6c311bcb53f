"""Steps that begin before the tokens of the one before are known."""

from __future__ import annotations

import pytest
import torch

from pagetide_server.engine.faults import DeviceLost

from .harness import CHOICE, Harness


def test_a_step_begins_before_the_tokens_of_the_one_before_are_known(harness):
    made = harness(async_scheduling=True)
    made.add("a", max_tokens=3)
    assert made.step() == []
    assert [o.token_ids for o in made.step()] == [[5]]
    assert len(made.runner.steps) == 2
    made.run()
    assert made.tokens("a") == [5, 6, 7]
    # That the third token is the last was known beforehand.
    assert len(made.runner.steps) == made.sampler.launched == 3


def test_a_sequence_that_turns_out_to_have_ended_was_computed_once_for_nothing(harness):
    made = harness(async_scheduling=True)
    made.add("a", max_tokens=9, stop_token_ids=(6,))
    made.add("b", prompt=9, max_tokens=4)
    made.run()
    assert (made.tokens("a"), made.tokens("b")) == ([5, 6], [9, 10, 11, 12])
    assert made.ends() == {("a", 0): "stop", ("b", 0): "length"}
    # "b" waits for the beginning that it shares with "a", which has three rows for its two tokens.
    assert [len(step.rows) for step in made.runner.steps] == [1, 2, 2, 1, 1]


def test_what_must_look_at_tokens_waits_for_them(harness):
    made = harness(async_scheduling=True)
    made.compiler.answer = "ok"
    made.add("plain", max_tokens=6)
    made.add("scored", prompt=4, prompt_logprobs=1, max_tokens=2)
    made.add("told", prompt=3, logprobs=0, max_tokens=2)
    made.add("structured", prompt=2, structure=CHOICE, max_tokens=2)
    made.run()
    assert made.tokens("plain") == [5, 6, 7, 8, 9, 10]
    assert [made.tokens(name) for name in ("scored", "told", "structured")] == [[4, 5], [3, 4], [2, 3]]
    assert 0 < made.sampler.launched < len(made.runner.steps)


def test_an_abort_between_a_step_and_its_tokens(harness):
    made = harness(async_scheduling=True)
    made.add("a", max_tokens=9)
    made.add("b", prompt=9, max_tokens=4)
    made.step()
    made.step()
    assert [o.finish_reason for o in made.abort("a")] == ["abort"]
    made.run()
    assert (made.tokens("a"), made.tokens("b")) == ([5], [9, 10, 11, 12])


def test_an_abort_of_all_leaves_a_step_to_end(harness):
    made = harness(async_scheduling=True)
    made.add("a", max_tokens=9)
    made.step()
    made.abort("a")
    assert made.core.has_work()
    assert made.step() == []
    assert not made.core.has_work()


def test_a_failing_step_keeps_the_tokens_on_their_way(harness):
    made = harness(async_scheduling=True)
    made.add("a", max_tokens=9)
    made.add("b", prompt=list(range(60, 69)), max_tokens=1)
    made.step()
    made.runner.faults["a"] = MemoryError("no room")
    made.step()
    assert (made.tokens("a"), made.tokens("b")) == ([5], [9])
    assert made.ends() == {("a", 0): "error", ("b", 0): "length"}


def test_nan_is_told_of_its_row_and_its_next_token_is_dropped(harness):
    made = harness(async_scheduling=True)
    made.sampler.nan.add("a")
    made.add("a", max_tokens=9)
    made.add("b", prompt=9, max_tokens=3)
    made.run()
    assert made.ends() == {("a", 0): "error", ("b", 0): "length"}
    assert made.tokens("b") == [9, 10, 11]


def test_a_sampler_that_raises_is_asked_again_for_each_row(harness):
    made = harness(async_scheduling=True)
    made.add("a", max_tokens=9, stop_token_ids=(6,))
    made.add("b", prompt=9, max_tokens=3)
    made.step()
    made.step()
    # By the time that this is found, "a" has ended.
    made.sampler.broken.add("b")
    made.run()
    assert made.ends() == {("a", 0): "stop", ("b", 0): "error"}


def test_tokens_that_never_come_are_a_lost_device():
    made = Harness(async_scheduling=True)
    made.add("a")
    made.sampler.lost = torch.AcceleratorError("illegal access")
    made.step()
    with pytest.raises(DeviceLost, match="illegal access"):
        made.step()
