"""Requests and answers that are withdrawn, at any point."""

from __future__ import annotations

import pytest

from .harness import CHOICE


def compiling(made):
    assert made.core.is_waiting()
    assert not made.core.has_work()


def waiting(made):
    made.compiler.answer = "ready"


def in_the_middle_of_the_prompt(made):
    made.compiler.answer = "ready"
    made.step()
    assert made.outputs == []


def running(made):
    made.compiler.answer = "ready"
    for _ in range(5):
        made.step()
    assert made.outputs


@pytest.mark.parametrize(
    ("structure", "reach"),
    [
        (CHOICE, compiling),
        *(
            (structure, reach)
            for structure in (None, CHOICE)
            for reach in (waiting, in_the_middle_of_the_prompt, running)
        ),
    ],
)
@pytest.mark.parametrize("index", [None, 0, 1])
def test_abort_at_any_point(harness, structure, reach, index):
    made = harness(max_num_batched_tokens=5)
    made.add("a", 12, n=2, max_tokens=6, structure=structure)
    reach(made)
    ended = made.abort("a", index)
    assert sorted(o.index for o in ended) == ([0, 1] if index is None else [index])
    assert {o.finish_reason for o in ended} == {"abort"}
    assert made.abort("a", index) == []
    if index is None:
        made.check_empty()
    made.compiler.answer = "ready"
    made.run()
    other = {0: 1, 1: 0}.get(index)
    if other is not None:
        assert made.ends() == {("a", index): "abort", ("a", other): "length"}
        assert made.tokens("a", other) == [12, 13, 14, 15, 16, 17]
        assert len(made.tokens("a", index)) < 6


def test_the_last_answer_withdrawn_while_compiling_ends_the_request(harness):
    made = harness()
    made.add("a", n=2, structure=CHOICE)
    made.abort("a", 0)
    assert made.core.is_waiting()
    made.abort("a", 1)
    made.check_empty()
    assert [o.index for o in made.outputs] == [0, 1]


def test_abort_of_what_is_unknown_ends_nothing(harness):
    made = harness()
    made.add("a", structure=CHOICE)
    assert made.abort("b") == made.abort("a", 3) == []
    made.compiler.answer = "ready"
    made.run()
    assert made.ends() == {("a", 0): "length"}
