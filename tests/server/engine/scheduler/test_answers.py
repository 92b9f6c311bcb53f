"""The scheduler's rules, one by one: several answers to one prompt."""

from __future__ import annotations

from .requests import request, rows_of


def test_answers_share_the_prompt_and_copy_its_partial_block_when_they_write(engine):
    made = engine(request("a", 6, n=3, max_tokens=4))
    first = made.step()
    assert rows_of(first) == [("a", 6)]
    assert [s.index for s in first.sampling()] == [0, 1, 2]
    assert made.scheduler.stats().blocks_used == 2
    second = made.step()
    # The last to write has the block for itself by then.
    assert len(second.copies) == 2
    assert made.scheduler.stats().blocks_used == 4
    assert not any(step.copies for step in made.run())
    assert {key: each.finish_reason for key, each in made.ended.items()} == {("a", i): "length" for i in range(3)}


def test_every_answer_knows_what_the_cache_saved(engine):
    made = engine(request("a", list(range(9))))
    made.run()
    made.scheduler.add(request("b", list(range(9)), n=2))
    assert [s.cached_tokens for s in made.step().sampling()] == [8, 8]
    assert made.scheduler.stats().prefix_query_tokens == 18
    made.run()


def test_nothing_is_copied_if_the_prompt_ends_with_a_block(engine):
    made = engine(request("a", 8, n=3))
    assert not any(step.copies for step in made.run())


def test_all_answers_wait_for_enough_slots(engine):
    made = engine(request("a", max_tokens=3), request("b", n=4), request("c"))
    assert [rows_of(made.step()) for _ in range(3)] == [[("a", 5)], [("a", 1)], [("a", 1)]]
    made.step()
    assert made.scheduler.stats().running == 4
    made.run()


def test_slots_are_kept_while_the_prompt_is_computed(engine):
    made = engine(request("a", 10, n=3), request("b", 4), request("c", 4), max_num_batched_tokens=4)
    made.step()
    made.step()
    step = made.step()
    # a is done; b takes the fourth slot, c none.
    assert rows_of(step) == [("a", 2), ("b", 2)]
    made.run()


def test_best_of_makes_as_many_answers(engine):
    made = engine(request("a", n=1, best_of=3))
    made.run()
    assert set(made.ended) == {("a", 0), ("a", 1), ("a", 2)}
