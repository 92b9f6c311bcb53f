"""What comes out: tokens, facts of the first output, scores of the prompt."""

from __future__ import annotations

import pytest


def test_tokens_and_facts_of_the_first_output(harness):
    made = harness()
    made.add("a", 5, logprobs=0)
    made.run()
    first, *rest = made.outputs
    assert [o.token_ids for o in made.outputs] == [[5], [6], [7]]
    assert first.scheduled > 0
    assert all(o.scheduled == 0 for o in rest)
    assert all(len(o.logprobs) == 1 for o in made.outputs)
    made.add("b", 5)
    made.outputs = []
    made.run()
    assert made.outputs[0].cached_tokens == 4


@pytest.mark.parametrize(
    "budgets",
    [
        pytest.param([64] * 9, id="at once"),
        pytest.param([3] * 9, id="in pieces of three"),
        pytest.param([1] * 9, id="token by token"),
        pytest.param([5, 1, 7, 2, 64], id="in uneven pieces"),
    ],
)
def test_prompt_logprobs_are_whole_however_the_prompt_is_cut(harness, budgets):
    made = harness()
    prompt = list(range(40, 51))
    made.add("a", prompt, prompt_logprobs=2)
    for budget in budgets:
        made.set_budget(budget)
        if made.core.has_work():
            made.step()
    made.run()
    check_scores(made.outputs[0].prompt_logprobs, prompt)
    assert all(o.prompt_logprobs is None for o in made.outputs[1:])


def check_scores(scores, prompt):
    none, *others = scores
    assert none is None
    assert [(s.token_id, s.logprob) for s in others] == [(t, -float(i)) for i, t in enumerate(prompt[1:])]


@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("again", [1, 3, 8, 64])
def test_prompt_logprobs_are_whole_after_a_preemption(harness, mode, again):
    """The second time the prompt is cut elsewhere."""
    made = harness(policy="priority", max_num_seqs=1, max_num_batched_tokens=5, preemption_mode=mode)
    prompt = list(range(40, 57))
    made.add("a", prompt, prompt_logprobs=0, priority=1)
    made.step()
    made.step()
    made.add("b", 3, max_tokens=1)
    made.step()
    made.set_budget(again)
    made.run()
    stats = made.core.stats()
    assert (stats.preemptions_swap, stats.preemptions_recompute) == ((1, 0) if mode == "swap" else (0, 1))
    (first,) = [o for o in made.outputs if o.prompt_logprobs is not None]
    check_scores(first.prompt_logprobs, prompt)
    assert made.tokens("a") == [17, 18, 19]


def test_scores_come_with_the_only_output_of_a_prompt_that_is_only_scored(harness):
    made = harness()
    made.add("a", [7, 8, 9], prompt_logprobs=0, max_tokens=0)
    made.run()
    (output,) = made.outputs
    assert (output.token_ids, output.finish_reason) == ([], "length")
    check_scores(output.prompt_logprobs, [7, 8, 9])
