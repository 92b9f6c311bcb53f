"""Whom a failure of the model or the sampler harms, and whom it does not."""

from __future__ import annotations

import pytest

from pagetide_server.engine.faults import DeviceLost


def test_a_failing_forward_ends_the_requests_of_its_step_and_no_others(harness):
    made = harness(max_num_seqs=2)
    for name in ("a", "bb", "ccc"):
        made.add(name)
    made.runner.faults["bb"] = RuntimeError("out of memory")
    outputs = made.step()
    assert {(o.request_id, o.finish_reason, o.error_kind) for o in outputs} == {
        ("a", "error", "engine"),
        ("bb", "error", "engine"),
    }
    assert {o.error for o in outputs} == {"out of memory"}
    made.run()
    assert made.tokens("ccc") == [5, 6, 7]
    assert made.add("dddd") == []
    made.run()
    assert made.ends()["dddd", 0] == "length"


def test_a_failing_forward_takes_along_who_was_being_swapped_out(harness):
    made = harness(policy="priority", max_num_seqs=1, preemption_mode="swap")
    made.add("a", priority=1)
    made.step()
    made.add("bb")
    made.runner.faults["bb"] = RuntimeError()
    made.step()
    assert made.ends() == {("a", 0): "error", ("bb", 0): "error"}
    assert {o.error for o in made.outputs if o.error} == {"RuntimeError"}


def test_a_failing_forward_takes_along_who_was_being_swapped_in_without_a_row(harness):
    """The others' prompts leave nothing of the step's budget for scored tokens."""
    made = harness(
        policy="priority", max_num_seqs=2, preemption_mode="swap", max_scored_tokens=4, enable_prefix_caching=False
    )
    made.add("a", 20, prompt_logprobs=0, priority=5)
    made.step()
    made.step()
    made.add("bb", 20, prompt_logprobs=0, max_tokens=1)
    made.add("ccc", 3, max_tokens=1)
    made.step()
    made.step()
    made.runner.faults["bb"] = RuntimeError("out of memory")
    made.step()
    failed = made.runner.steps[-1]
    assert failed.swap_in
    assert [row.sequence.request_id for row in failed.rows] == ["bb"]
    assert made.ends() == {("a", 0): "error", ("bb", 0): "error", ("ccc", 0): "length"}


def test_a_failing_forward_leaves_who_is_to_be_recomputed_anyhow(harness):
    made = harness(policy="priority", max_num_seqs=1, preemption_mode="recompute")
    made.add("a", priority=1)
    made.step()
    made.add("bb")
    made.runner.faults["bb"] = RuntimeError("broken")
    made.run()
    assert made.ends() == {("a", 0): "length", ("bb", 0): "error"}
    assert made.tokens("a") == [5, 6, 7]


def test_all_answers_that_wait_for_a_failing_prompt_end(harness):
    made = harness(max_num_batched_tokens=4)
    made.add("a", 6, n=3)
    made.runner.faults["a"] = RuntimeError("broken")
    made.run()
    assert made.ends() == {("a", i): "error" for i in range(3)}


def test_a_lost_device_ends_the_loop(harness):
    made = harness()
    made.add("a")
    made.runner.faults["a"] = DeviceLost("gone")
    with pytest.raises(DeviceLost):
        made.core.step()
    made.abort("a")


def test_a_row_of_nan_ends_its_answer_only(harness):
    made = harness()
    made.add("a")
    made.add("bb", n=2)
    made.sampler.nan.add("bb")
    made.run()
    assert made.ends() == {("a", 0): "length", ("bb", 0): "error", ("bb", 1): "error"}
    assert made.tokens("a") == [5, 6, 7]


def test_a_sampler_that_fails_for_one_request_fails_that_one(harness):
    made = harness()
    for name in ("a", "bb", "ccc"):
        made.add(name, n=1 + (name == "a"))
    made.step()
    made.sampler.broken.add("bb")
    made.step()
    # The forward was done once more, without moving any block again.
    assert [(len(s.rows), bool(s.copies)) for s in made.runner.steps[-2:]] == [(4, True), (4, False)]
    made.run()
    assert made.ends() == {("a", 0): "length", ("a", 1): "length", ("bb", 0): "error", ("ccc", 0): "length"}
    assert made.tokens("ccc") == made.tokens("a", 1) == [5, 6, 7]


def test_a_prompt_that_cannot_be_scored_fails_alone(harness):
    made = harness()
    made.add("a", [7, 99, 8], prompt_logprobs=0, n=2)
    made.add("bb")
    made.sampler.unscorable.add(99)
    made.run()
    assert made.ends() == {("a", 0): "error", ("a", 1): "error", ("bb", 0): "length"}
