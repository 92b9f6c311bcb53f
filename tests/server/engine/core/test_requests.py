"""What the loop takes in, and what it refuses at once."""

from __future__ import annotations

import pytest

from .fakes import VOCABULARY
from .harness import CHOICE


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        pytest.param([], {}, "no token", id="an empty prompt"),
        pytest.param([5, VOCABULARY], {}, "token id", id="an id outside the vocabulary"),
        pytest.param([5, -1], {}, "token id", id="a negative id"),
        pytest.param(64, {}, "max_model_len of 64", id="a prompt that fills the window"),
        pytest.param(
            64, {"structure": CHOICE}, "max_model_len of 64", id="the same with a structure: before compiling"
        ),
        pytest.param(5, {"n": 5}, "max_num_seqs is 4", id="more answers than slots"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(harness, prompt, params, words):
    made = harness()
    (refusal,) = made.add("a", prompt, **params)
    assert (refusal.finish_reason, refusal.error_kind) == ("error", "invalid")
    assert words in refusal.error
    assert not made.core.has_work()
    made.check_empty()


def test_an_id_in_use_is_refused_and_free_again_at_the_end(harness):
    made = harness()
    made.add("a")
    made.add("b", structure=CHOICE)
    for name in ("a", "b"):
        (refusal,) = made.add(name)
        assert refusal.error_kind == "invalid"
        assert "in use" in refusal.error
    made.abort("b")
    made.run()
    made.outputs.clear()
    assert made.add("a") == made.add("b") == []


def test_requests_that_wait_for_their_grammar_count_in_the_queue(harness):
    made = harness(max_num_seqs=1, max_queue_len=2)
    made.add("a", structure=CHOICE)
    made.add("b", structure=CHOICE)
    made.add("c")
    (refusal,) = made.add("d")
    assert refusal.error_kind == "queue_full"
    assert made.add("e", structure=CHOICE)[0].error_kind == "queue_full"
    made.outputs = []
    assert made.core.stats().waiting == 3
    made.compiler.answer = "ready"
    made.run()
    assert set(made.ends()) == {("a", 0), ("b", 0), ("c", 0)}


def test_the_oldest_that_waits_may_wait_for_its_grammar(harness):
    made = harness(max_num_seqs=1, max_queue_len=9)
    made.add("first", arrival=1.0)
    made.step()
    made.add("b", structure=CHOICE, arrival=2.0)
    made.add("c", arrival=3.0)
    assert made.core.stats().oldest_arrival == 2.0
    made.compiler.answer = "ready"
    made.step()
    assert made.core.stats().oldest_arrival == 2.0
