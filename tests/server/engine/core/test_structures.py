"""Grammars that come late, that do not compile, and whose matchers fail."""

from __future__ import annotations

import pytest

from pagetide_server.engine.faults import RequestFault, StructureFault
from pagetide_spec.errors import PagetideError

from .fakes import FakeMatcher
from .harness import CHOICE


def test_a_request_joins_when_its_grammar_is_there(harness):
    made = harness()
    made.add("a", structure=CHOICE)
    made.add("bb")
    made.run()
    assert set(made.ends()) == {("bb", 0)}
    assert (made.core.has_work(), made.core.is_waiting()) == (False, True)
    made.compiler.answer = "ready"
    assert made.core.has_work()
    made.run()
    assert made.tokens("a") == [5, 6, 7]


def test_the_order_of_arrival_does_not_depend_on_how_long_grammars_take(harness):
    """An engine with a seed draws by it, and must repeat itself."""
    made = harness()
    for name, structure in (("a", CHOICE), ("bb", None), ("ccc", CHOICE)):
        made.add(name, structure=structure)
    made.run()
    made.compiler.answer = "ready"
    made.run()
    orders = {row.sequence.request_id: row.sequence.arrival_order for step in made.runner.steps for row in step.rows}
    assert sorted(orders, key=orders.get) == ["a", "bb", "ccc"]


@pytest.mark.parametrize(
    ("answer", "kind", "indices"),
    [
        # A refusal stands for the whole request, a failure for one answer.
        pytest.param(PagetideError("json: no such type"), "structure", [0], id="a wrong schema"),
        pytest.param(RuntimeError("panic"), "engine", [0, 2], id="a fault of the compiler"),
    ],
)
def test_a_grammar_that_does_not_compile_after_one_that_did(harness, answer, kind, indices):
    made = harness()
    made.compiler.answer = "ready"
    made.add("a", structure=CHOICE)
    made.step()
    made.compiler.answer = answer
    made.add("bb", n=3, structure=CHOICE)
    made.abort("bb", 1)
    made.run()
    withdrawn, *errors = [o for o in made.outputs if o.request_id == "bb"]
    assert withdrawn.finish_reason == "abort"
    assert [o.index for o in errors] == indices
    assert {(o.finish_reason, o.error_kind, o.error) for o in errors} == {("error", kind, str(answer))}
    assert made.tokens("a") == [5, 6, 7]


def test_a_grammar_without_matcher_fails_its_request_only(harness):
    made = harness()
    made.compiler.answer = "broken"
    made.add("a", n=2, structure=CHOICE, prompt_logprobs=0)
    made.add("bb")
    made.run()
    assert made.ends() == {("a", 0): "error", ("a", 1): "error", ("bb", 0): "length"}


@pytest.mark.parametrize(
    ("refused", "tokens"),
    [
        pytest.param((6,), [5], id="a token that the structure does not allow"),
        pytest.param(None, [], id="a matcher that raises"),
    ],
)
def test_a_matcher_that_cannot_go_on_fails_its_answer_only(harness, refused, tokens):
    made = harness()
    made.compiler.answer, made.compiler.refused = "ready", refused
    made.add("a", structure=CHOICE)
    made.add("bb")
    made.run()
    assert made.tokens("a") == tokens
    assert made.ends() == {("a", 0): "error", ("bb", 0): "length"}


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        pytest.param(RequestFault, "invalid", id="of the request"),
        pytest.param(StructureFault, "structure", id="of its structure"),
    ],
)
@pytest.mark.parametrize(
    ("seen", "tokens"),
    [
        pytest.param(5, {0: [], 1: []}, id="at the first token"),
        pytest.param(6, {0: [5], 1: [5]}, id="later"),
    ],
)
def test_a_request_at_fault_ends_with_one_refusal_for_all_its_answers(harness, monkeypatch, seen, tokens, fault, kind):
    made = harness()
    made.compiler.answer, made.compiler.refused = "ready", (seen,)
    monkeypatch.setattr(FakeMatcher, "fault", fault("too many items"))
    made.add("a", n=2, structure=CHOICE)
    made.add("bb")
    made.run()
    assert {i: made.tokens("a", i) for i in (0, 1)} == tokens
    (refusal,) = [o for o in made.outputs if o.request_id == "a" and o.finish_reason]
    assert (refusal.index, refusal.error_kind) == (0, kind)
    assert "too many items" in refusal.error
    assert made.ends()["bb", 0] == "length"
    assert not made.core.has_work()


def test_each_answer_has_a_matcher_of_its_own_that_survives_preemption(harness):
    made = harness(policy="priority", max_num_seqs=2, preemption_mode="recompute")
    made.compiler.answer = "ready"
    made.add("a", n=2, structure=CHOICE, priority=1, max_tokens=4)
    made.step()
    matchers = [row.sequence.matcher for row in made.core.step().outputs and made.runner.steps[-1].rows]
    made.add("bb", max_tokens=1)
    made.run()
    assert made.core.stats().preemptions_recompute == 1
    assert len(set(map(id, matchers))) == 2
    # The last token ends the answer; the matcher need not see it.
    assert [m.seen for m in matchers] == [[5, 6, 7], [5, 6, 7]]


def test_close_ends_the_compiler_and_tells_what_prompts_had_in_common(harness, caplog):
    caplog.set_level("INFO", "pagetide_server")
    made = harness()
    for name in ("a", "b"):
        made.add(name, list(range(10, 20)))
        made.run()
    stats = made.core.stats()
    assert (stats.prefix_tail_tokens, stats.prefix_shareable_tokens) == (1, {4: 8, 8: 8, 16: 0, 32: 0})
    made.core.close()
    assert made.compiler.closed
    assert "block_size: 2 prompts of 20 tokens" in caplog.text
