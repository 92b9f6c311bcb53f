"""The scheduler's rules, one by one: prompts with `prompt_logprobs`."""

from __future__ import annotations

from .requests import names, request, rows_of


def test_a_prompt_to_be_scored_comes_in_pieces_however_large_the_budget(engine):
    """Even if prompts may not be cut: its logits would take too much memory."""
    made = engine(request("a", 13, prompt_logprobs=0), max_scored_tokens=6, enable_chunked_prefill=False)
    assert [rows_of(made.step()) for _ in range(4)] == [[("a", 6)], [("a", 6)], [("a", 1)], [("a", 1)]]
    made.run()


def test_prompts_to_be_scored_share_what_a_step_may_score_and_hold_nobody_up(engine):
    made = engine(
        request("a", 5, prompt_logprobs=0, max_tokens=1),
        request("b", 5, prompt_logprobs=0, max_tokens=1),
        request("c", 5, prompt_logprobs=0, max_tokens=1),
        request("d", 9, max_tokens=2),
        max_scored_tokens=6,
    )
    step = made.step()
    assert rows_of(step) == [("a", 5), ("b", 1), ("d", 9)]
    assert names(step.started) == ["a", "b", "c", "d"]
    assert rows_of(made.step()) == [("d", 1), ("b", 4), ("c", 2)]
    assert rows_of(made.step()) == [("c", 3)]
    made.check_empty()


def test_an_answer_behind_a_scored_prompt_is_recomputed_in_one_piece(engine):
    made = engine(
        request("a", 9, prompt_logprobs=0, priority=1), policy="priority", max_num_seqs=1, max_scored_tokens=5
    )
    for _ in range(3):
        made.step()
    made.scheduler.add(request("b", 3, max_tokens=1))
    assert names(made.step().preempted) == ["a"]
    # Its two full blocks are still cached: the rest of prompt and answer follows at once.
    assert rows_of(made.step()) == [("a", 3)]
    made.run()
