"""The scheduler's rules, one by one: what need not be computed again."""

from __future__ import annotations

import pytest

from .requests import names, request, rows_of


@pytest.mark.parametrize(
    ("second", "changes", "cached"),
    [
        pytest.param(request("b", list(range(10))), {}, 8, id="all full blocks of the same prompt"),
        pytest.param(request("b", [*range(6), 99, 98]), {}, 4, id="the blocks before the difference"),
        pytest.param(request("b", list(range(8))), {}, 4, id="a full hit still computes the last block"),
        pytest.param(request("b", list(range(9))), {}, 8, id="a full hit and one token"),
        pytest.param(request("b", list(range(10)), salt="x"), {}, 0, id="another salt"),
        pytest.param(request("b", list(range(10)), prompt_logprobs=1), {}, 0, id="a prompt to be scored"),
        pytest.param(request("b", list(range(10))), {"enable_prefix_caching": False}, 0, id="switched off"),
    ],
)
@pytest.mark.parametrize("ended", [pytest.param(True, id="after it ended"), pytest.param(False, id="while it runs")])
def test_prefix_cache_hits(engine, second, changes, cached, ended):
    made = engine(request("a", list(range(10))), **changes)
    if ended:
        made.run()
    else:
        made.step()
    made.scheduler.add(second)
    step = made.step()
    assert [s.cached_tokens for s in step.started] == [cached]
    assert rows_of(step)[-1] == ("b", second.prompt_token_ids.__len__() - cached)
    assert made.scheduler.stats().prefix_hit_tokens == cached
    made.run()
    made.check_empty()


def test_answers_are_found_by_the_next_turn(engine):
    made = engine(request("a", list(range(6)), max_tokens=7))
    made.run()
    # 13 tokens, of which the last was never computed: three full blocks.
    made.scheduler.add(request("b", [*made.ended["a", 0].sequence.tokens, 1, 2, 3]))
    assert made.step().started[0].cached_tokens == 12


def test_hits_are_counted_once_however_long_a_request_waits_or_comes_back(engine):
    made = engine(request("a", list(range(12))), num_blocks=8)
    made.run()
    for name in ("b", "c"):
        made.scheduler.add(request(name, list(range(12)), max_tokens=14))
    steps = made.run()
    assert any(step.preempted for step in steps)
    stats = made.scheduler.stats()
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (36, 16)


TEXT = list(range(22))


@pytest.mark.parametrize(
    ("first", "second", "changes", "steps"),
    [
        pytest.param(
            request("a", TEXT),
            request("b", TEXT),
            {},
            [[("a", 22)], [("a", 1), ("b", 2)]],
            id="equal prompts: all but the last block is found a step later",
        ),
        pytest.param(
            request("a", TEXT[:9]),
            request("b", TEXT[:4] + [9] * 9),
            {},
            [[("a", 9)], [("a", 1), ("b", 9)]],
            id="one common block is worth a step",
        ),
        pytest.param(
            request("a", TEXT[:7]), request("b", TEXT[:3] + [9] * 4), {}, [[("a", 7), ("b", 7)]], id="less than a block"
        ),
        pytest.param(
            request("a", TEXT[:9]),
            request("b", TEXT[:4]),
            {},
            [[("a", 9), ("b", 4)]],
            id="a block that ends the prompt",
        ),
        pytest.param(
            request("a", TEXT), request("b", TEXT, salt="b"), {}, [[("a", 22), ("b", 22)]], id="salted differently"
        ),
        pytest.param(
            request("a", TEXT),
            request("b", TEXT),
            {"enable_prefix_caching": False},
            [[("a", 22), ("b", 22)]],
            id="without a cache nothing is waited for",
        ),
        pytest.param(
            request("a", TEXT),
            request("b", TEXT, prompt_logprobs=0),
            {},
            [[("a", 22), ("b", 22)]],
            id="a prompt to be scored takes nothing from others",
        ),
        pytest.param(
            request("a", TEXT, prompt_logprobs=0),
            request("b", TEXT),
            {"max_scored_tokens": 8},
            [[("a", 8), ("b", 22)]],
            id="nor does anybody wait for its many pieces",
        ),
        pytest.param(
            request("a", TEXT),
            request("b", TEXT),
            {"max_num_batched_tokens": 12},
            [[("a", 12)], [("a", 10)], [("a", 1), ("b", 2)]],
            id="a prompt in pieces is waited for to its end",
        ),
    ],
)
def test_who_starts_together_computes_a_common_beginning_once(engine, first, second, changes, steps):
    made = engine(first, second, **changes)
    assert [rows_of(made.step()) for _ in steps] == steps
    made.run()
    made.check_empty()


def test_sixty_four_requests_compute_what_they_share_once(engine):
    shared = list(range(100, 140))
    requests = [request(f"r{i}", [*shared, 1000 + i], max_tokens=2) for i in range(64)]
    made = engine(*requests, num_blocks=512, max_num_seqs=64, max_num_batched_tokens=512)
    steps = made.run()
    assert [len(step.started) for step in steps] == [1, 63, 0]
    assert [step.num_tokens for step in steps] == [41, 64, 63]
    assert made.scheduler.stats().prefix_hit_tokens == 63 * 40


def test_nobody_is_overtaken_by_who_need_not_wait(engine):
    made = engine(request("a", TEXT), request("b", TEXT), request("c", 5))
    assert [names(made.step().started) for _ in range(2)] == [["a"], ["b", "c"]]
    made.run()


def test_what_was_waited_for_is_computed_after_all_if_its_request_goes(engine):
    made = engine(request("a", TEXT), request("b", TEXT))
    step = made.plan()
    token_ids = made.memory.execute(step)
    made.scheduler.abort("a")
    made.settle(step, token_ids)
    assert rows_of(made.step()) == [("b", 22)]
    made.run()
