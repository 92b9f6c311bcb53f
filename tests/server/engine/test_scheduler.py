"""The scheduler's rules, one by one. Whole runs under random traffic are in test_scheduler_stateful.py."""

from __future__ import annotations

import subprocess
import sys
import time
import zlib

import pytest

from pagetide_server.engine.preemption import cheaper_mode
from pagetide_server.engine.scheduler import RequestRefused, Scheduler, SchedulerConfig
from pagetide_server.wire.messages import AddRequest, SamplingParams, Structure

SETTINGS = {
    "block_size": 4,
    "num_blocks": 32,
    "num_swap_blocks": 32,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 64,
    "preemption_mode": "recompute",
    "eos_token_ids": frozenset(),
}


def config(**changes) -> SchedulerConfig:
    return SchedulerConfig(**{**SETTINGS, **changes})


def request(name: str, prompt=5, *, priority=0, salt="", arrival=0.0, **params) -> AddRequest:
    """A request whose prompt is a list of ids, or that many ids that no other request of another name has."""
    if isinstance(prompt, int):
        first = 1000 * (zlib.crc32(name.encode()) % 1_000_000)
        prompt = list(range(first, first + prompt))
    return AddRequest(
        request_id=name,
        prompt_token_ids=prompt,
        params=SamplingParams(**{"max_tokens": 8, **params}),
        arrival=arrival,
        priority=priority,
        cache_salt=salt,
    )


@pytest.fixture
def engine(toy_engine):
    """Makes an engine of the settings above with some changed and some requests added."""

    def make(*requests, **changes):
        made = toy_engine(Scheduler(config(**changes)))
        for each in requests:
            made.scheduler.add(each)
        return made

    return make


def rows_of(step) -> list[tuple[str, int]]:
    """(request, tokens) of each row of a step."""
    return [(row.sequence.request_id, row.count) for row in step.rows]


def names(sequences) -> list[str]:
    return [sequence.request_id for sequence in sequences]


# ---- arrival


@pytest.mark.parametrize(
    ("changes", "prompt", "params", "words"),
    [
        pytest.param({}, 64, {}, ["64 tokens", "max_model_len of 64"], id="a prompt that fills the window"),
        pytest.param({}, 65, {"max_tokens": 0}, ["65 tokens", "max_model_len of 64"], id="a longer one only to score"),
        pytest.param({"num_blocks": 4}, 10, {"max_tokens": 7}, ["17 tokens", "holds 16"], id="prompt and answer"),
        pytest.param({"num_blocks": 4}, 10, {"max_tokens": None}, ["64 tokens", "holds 16"], id="an open answer"),
        pytest.param({"num_blocks": 4}, 10, {"max_tokens": 99}, ["64 tokens", "holds 16"], id="clipped to the window"),
        pytest.param({}, 5, {"n": 5}, ["n is 5", "max_num_seqs is 4"], id="more answers than slots"),
        pytest.param({}, 5, {"n": 2, "best_of": 5}, ["best_of is 5", "max_num_seqs is 4"], id="best_of beyond slots"),
        pytest.param(
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 8},
            9,
            {},
            ["9 tokens", "max_num_batched_tokens of 8", "enable_chunked_prefill"],
            id="a prompt longer than a step that may not be cut",
        ),
        pytest.param({}, 0, {}, ["no token"], id="an empty prompt"),
        pytest.param({}, [1, -2], {}, ["-2"], id="a negative token id"),
        pytest.param({}, [1, 2**32], {}, ["4294967296"], id="a token id beyond 32 bits"),
    ],
)
def test_what_can_never_run_is_refused_on_arrival(changes, prompt, params, words):
    scheduler = Scheduler(config(**changes))
    with pytest.raises(RequestRefused) as refusal:
        scheduler.add(request("a", prompt, **params))
    assert refusal.value.kind == "invalid"
    for word in words:
        assert word in str(refusal.value)
    assert not scheduler.has_work()


@pytest.mark.parametrize(
    ("changes", "prompt", "params", "length"),
    [
        pytest.param({}, 63, {"max_tokens": None}, 64, id="one token less than the window"),
        pytest.param({}, 64, {"max_tokens": 0}, 64, id="the whole window only to score"),
        pytest.param({"num_blocks": 4}, 10, {"max_tokens": 6}, 16, id="all of the memory"),
        pytest.param({"num_blocks": 4, "max_model_len": 16}, 10, {"max_tokens": 99}, 16, id="clipped to the window"),
        pytest.param({"max_num_batched_tokens": 1}, 9, {}, 17, id="one token a step"),
        pytest.param({"max_num_batched_tokens": 9, "enable_chunked_prefill": False}, 9, {}, 17, id="a whole step"),
    ],
)
def test_what_just_fits_runs_to_its_end(engine, changes, prompt, params, length):
    made = engine(request("a", prompt, **params), **changes)
    made.run()
    ended = made.ended["a", 0]
    assert (ended.finish_reason, len(ended.sequence.tokens)) == ("length", length)
    made.check_empty()


def test_a_request_id_in_use_is_refused(engine):
    made = engine(request("a"))
    with pytest.raises(RequestRefused, match="in use"):
        made.scheduler.add(request("a"))
    made.run()
    made.scheduler.add(request("a"))


def test_the_waiting_queue_is_bounded(engine):
    made = engine(request("a"), request("b"), request("c"), max_num_seqs=1, max_queue_len=2)
    with pytest.raises(RequestRefused, match="max_queue_len of 2") as refusal:
        made.scheduler.add(request("d"))
    assert refusal.value.kind == "queue_full"
    made.step()
    # The running one has left the queue, but takes the free slot with it.
    with pytest.raises(RequestRefused):
        made.scheduler.add(request("d"))
    made.scheduler.abort("b")
    made.scheduler.add(request("d"))
    made.run()
    assert set(made.ended) == {("a", 0), ("c", 0), ("d", 0)}


# ---- the budget


def test_a_long_prompt_is_cut_into_steps_beside_decodes(engine):
    made = engine(request("a", 3), max_num_batched_tokens=8)
    made.step()
    made.scheduler.add(request("b", 18))
    steps = [made.step() for _ in range(4)]
    assert [rows_of(step) for step in steps] == [
        [("a", 1), ("b", 7)],
        [("a", 1), ("b", 7)],
        [("a", 1), ("b", 4)],
        [("a", 1), ("b", 1)],
    ]
    assert [[row.samples for row in step.rows] for step in steps] == [
        [True, False],
        [True, False],
        [True, True],
        [True, True],
    ]


def test_what_a_prompt_leaves_of_the_budget_goes_to_the_next(engine):
    made = engine(request("a", 5), request("b", 9), request("c", 9), max_num_batched_tokens=8)
    assert rows_of(made.step()) == [("a", 5), ("b", 3)]
    assert rows_of(made.step()) == [("a", 1), ("b", 6), ("c", 1)]


def test_a_prompt_that_may_not_be_cut_waits_for_a_step_of_its_own(engine):
    made = engine(
        request("a", 3, max_tokens=3),
        request("b", 8),
        request("c", 1),
        max_num_batched_tokens=8,
        enable_chunked_prefill=False,
    )
    # c would fit beside a, but may not overtake b.
    assert [rows_of(made.step()) for _ in range(4)] == [[("a", 3)], [("a", 1)], [("a", 1)], [("b", 8)]]
    assert rows_of(made.step()) == [("b", 1), ("c", 1)]


def test_the_first_prompt_gets_on_even_if_decodes_could_take_all(engine):
    made = engine(request("a", 7, n=4), max_num_batched_tokens=4, max_num_seqs=5, policy="priority")
    made.step()
    made.scheduler.add(request("b", 6, priority=-1))
    assert rows_of(made.step()) == [("a", 3), ("b", 1)]
    assert rows_of(made.step()) == [("a", 1), ("a", 1), ("a", 1), ("b", 1)]
    made.run()


# ---- prompts that are to be scored


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


# ---- order


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        pytest.param("fcfs", ["a", "b", "c", "d"], id="in order of arrival, whatever the priority"),
        pytest.param("priority", ["d", "b", "c", "a"], id="lower value first, then arrival"),
    ],
)
def test_order_of_start(engine, policy, order):
    requests = [request(name, priority=p) for name, p in [("a", 2), ("b", 1), ("c", 1), ("d", -3)]]
    made = engine(*requests, policy=policy, max_num_seqs=1)
    assert [name for step in made.run() for name in names(step.started)] == order


@pytest.mark.parametrize(
    ("changes", "prompt"),
    [
        pytest.param({"max_num_seqs": 2}, 5, id="no slot is free"),
        pytest.param({"num_blocks": 8}, 20, id="no memory is free"),
    ],
)
def test_a_better_request_takes_the_place_of_a_worse_one(engine, changes, prompt):
    made = engine(request("a", priority=1), request("b", priority=2), policy="priority", **changes)
    made.step()
    made.scheduler.add(request("c", prompt, priority=0))
    step = made.step()
    assert names(step.preempted) == ["b"]
    assert names(step.started) == ["c"]
    made.run()
    assert [name for name, _ in made.ended if name != "a"] == ["c", "b"]


@pytest.mark.parametrize(
    ("policy", "priority"),
    [
        pytest.param("priority", 1, id="an equal priority"),
        pytest.param("priority", 2, id="a worse priority"),
        pytest.param("fcfs", 0, id="priorities that do not count"),
    ],
)
def test_nobody_gives_way_to(engine, policy, priority):
    made = engine(request("a", priority=1), policy=policy, max_num_seqs=1)
    made.step()
    made.scheduler.add(request("b", priority=priority))
    assert not any(step.preempted for step in made.run())


def test_nobody_gives_way_in_vain(engine):
    """b alone would give its memory, but that is not enough, and a is better than c."""
    made = engine(
        request("a", 18, priority=0), request("b", 4, priority=2, max_tokens=4), policy="priority", num_blocks=8
    )
    made.step()
    made.scheduler.add(request("c", 20, priority=1))
    assert made.step().preempted == []
    made.run()


def test_what_a_worse_prompt_still_needs_keeps_no_better_request_out(engine):
    made = engine(
        request("a", 4, priority=-1, max_tokens=12),
        request("b", 80, priority=1, max_tokens=2),
        policy="priority",
        num_blocks=26,
        max_num_batched_tokens=9,
        max_model_len=100,
    )
    made.step()
    made.step()
    made.scheduler.add(request("c", 60, priority=0, max_tokens=2))
    step = made.step()
    assert names(step.preempted) == ["b"]
    assert names(step.started) == ["c"]
    made.run()


def test_blocks_that_a_better_request_would_share_are_no_gain(engine):
    """All that b would free are the blocks that c finds already: c has room without it, or not at all."""
    common = list(range(40))
    made = engine(
        request("a", 15, priority=-1, max_tokens=20),
        request("b", [*common, 90], priority=1, max_tokens=8),
        policy="priority",
        num_blocks=25,
        max_model_len=100,
    )
    made.step()
    made.step()
    made.scheduler.add(request("c", [*common, *range(100, 140)][:79], priority=0, max_tokens=1))
    step = made.step()
    assert step.preempted == []
    made.run()


def test_what_running_answers_grow_by_is_not_given_to_a_better_request(engine):
    """In the step in which c comes each answer of a takes a block."""
    made = engine(
        request("a", 4, n=4, priority=-1, max_tokens=12),
        request("b", 16, priority=1, max_tokens=8),
        policy="priority",
        num_blocks=16,
        max_num_seqs=8,
    )
    for _ in range(5):
        made.step()
    made.scheduler.add(request("c", 28, priority=0, max_tokens=1))
    while made.scheduler.has_work():
        step = made.step()
        assert not step.preempted or names(step.started) == ["c"]


@pytest.mark.parametrize("changes", [
    pytest.param({"preemption_mode": "swap"}, id="swapped out"),
    pytest.param({"preemption_mode": "recompute"}, id="recomputed"),
    pytest.param({"preemption_mode": "swap", "enable_prefix_caching": False}, id="swapped out, nothing cached"),
])  # fmt: skip
def test_a_better_request_takes_the_blocks_that_worse_answers_share(engine, changes):
    made = engine(
        request("a", priority=-1, max_tokens=30),
        policy="priority",
        num_blocks=24,
        num_swap_blocks=48,
        max_num_seqs=8,
        **changes,
    )
    made.step()
    made.scheduler.add(request("b", 48, n=3, max_tokens=20, priority=1))
    made.step()
    made.step()
    made.scheduler.add(request("c", 40, priority=0, max_tokens=2))
    step = made.step()
    assert set(names(step.preempted)) == {"b"}
    assert names(step.started) == ["c"]
    made.run()
    assert next(name for name, _ in made.ended) == "c"


def test_an_end_token_ends_a_structure_that_ignores_it(engine):
    """The sampler lets it come only where the structure is finished."""
    answer = request("a", max_tokens=9, ignore_eos=True, structure=Structure(kind="json_object"))
    made = engine(answer, eos_token_ids=frozenset(range(50)))
    made.run()
    assert made.ended["a", 0].finish_reason == "stop"


# ---- preemption


def test_the_newest_gives_way_and_a_step_that_preempted_admits_nobody(engine):
    made = engine(request("a", 4), request("b", 4), request("c", 4), request("d", 4), num_blocks=5, max_num_seqs=3)
    steps = made.run()
    preempting = [step for step in steps if step.preempted]
    assert preempting
    assert all(not step.started and not step.swap_in for step in preempting)
    assert [name for step in steps for name in names(step.started)] == ["a", "b", "c", "d"]
    assert names(preempting[0].preempted) == ["c"]
    # The oldest never gives way.
    assert "a" not in [name for step in steps for name in names(step.preempted)]
    assert len(made.ended) == 4


def test_a_prompt_under_way_takes_what_memory_there_is_before_anybody_gives_way(engine):
    made = engine(
        request("b", 3, priority=1, max_tokens=20),
        request("c", 3, priority=1, max_tokens=20),
        num_blocks=13,
        max_num_batched_tokens=10,
        policy="priority",
    )
    made.step()
    made.scheduler.add(request("a", 40, max_tokens=1))
    steps = [made.step() for _ in range(6)]
    assert [count for step in steps for name, count in rows_of(step) if name == "a"] == [8, 8, 8, 8, 4, 4]
    assert [names(step.preempted) for step in steps] == [[]] * 5 + [["c"]]
    made.run()


def test_memory_for_answers_about_to_join_is_kept(engine):
    made = engine(request("a", 10, n=3, max_tokens=2), max_num_batched_tokens=8, num_blocks=6)
    made.step()
    made.scheduler.add(request("b", 4))
    assert rows_of(made.step()) == [("a", 2)]
    assert not any(step.preempted for step in made.run())


@pytest.mark.parametrize(
    ("mode", "swap_blocks", "counts"),
    [
        pytest.param("swap", 32, (True, False), id="swap"),
        pytest.param("recompute", 32, (False, True), id="recompute"),
        pytest.param("swap", 0, (False, True), id="swap without swap space recomputes"),
        pytest.param("auto", 32, (True, False), id="auto with a fast bus swaps"),
    ],
)
def test_preemption_mode(engine, mode, swap_blocks, counts):
    made = engine(
        request("a", 4, max_tokens=12),
        request("b", 4, max_tokens=12),
        num_blocks=5,
        preemption_mode=mode,
        num_swap_blocks=swap_blocks,
    )
    made.run()
    stats = made.scheduler.stats()
    assert (stats.preemptions_swap > 0, stats.preemptions_recompute > 0) == counts
    assert (stats.swapped_out_blocks > 0, stats.swapped_in_blocks > 0) == (counts[0], counts[0])
    assert stats.block_allocation_failures > 0
    made.check_empty()


@pytest.mark.parametrize(
    ("constants", "blocks", "tokens", "cheaper"),
    [
        # One block is 4 tokens; out and in again: 2 * 1 * 4 * 100 / 1000 = 0.8 s.
        pytest.param({"recompute_tokens_per_second": 4}, 1, 4, "swap", id="0.8 s to copy, 1 s to compute"),
        pytest.param({"recompute_tokens_per_second": 6}, 1, 4, "recompute", id="0.8 s to copy, 0.67 s to compute"),
        pytest.param({"recompute_tokens_per_second": 5}, 1, 4, "recompute", id="even: recompute"),
        pytest.param({"recompute_tokens_per_second": 4}, 3, 4, "recompute", id="most of it is shared"),
        pytest.param({"recompute_tokens_per_second": 4}, 3, 0, "recompute", id="all of it is shared"),
    ],
)
def test_the_cheaper_mode(constants, blocks, tokens, cheaper):
    made = config(kv_bytes_per_token=100, swap_bytes_per_second=1000, **constants)
    assert cheaper_mode(made, blocks=blocks, tokens=tokens) == cheaper


def test_a_swapped_sequence_comes_back_before_a_new_request_starts(engine):
    made = engine(
        request("a", 4, max_tokens=12),
        request("b", 4, max_tokens=12),
        num_blocks=5,
        max_num_seqs=2,
        preemption_mode="swap",
    )
    while not made.scheduler.stats().swapped:
        made.step()
    made.scheduler.add(request("c", 1, max_tokens=1))
    steps = made.run()
    came_back = next(i for i, step in enumerate(steps) if step.swap_in)
    assert next(i for i, step in enumerate(steps) if step.started) >= came_back


def test_auto_recomputes_what_other_answers_keep_alive(engine):
    """A copy of three blocks would take 0.48 ms; only one token of the prompt is not shared: 0.1 ms."""
    made = engine(
        request("a", 9, n=2, max_tokens=8, priority=1),
        policy="priority",
        max_num_seqs=2,
        preemption_mode="auto",
        swap_bytes_per_second=6.5e9,
    )
    made.step()
    made.scheduler.add(request("b"))
    made.step()
    stats = made.scheduler.stats()
    assert (stats.preemptions_swap, stats.preemptions_recompute) == (0, 1)
    made.run()


def test_a_prompt_swapped_out_half_way_comes_back_to_where_it_was(engine):
    """Meanwhile another request has computed the same prompt to its end."""
    prompt = list(range(16))
    made = engine(
        request("a", prompt, priority=1),
        policy="priority",
        max_num_seqs=1,
        max_num_batched_tokens=8,
        preemption_mode="swap",
    )
    made.step()
    made.scheduler.add(request("b", prompt))
    steps = made.run()
    assert sum(len(step.swap_out) for step in steps) == 2
    assert set(made.ended) == {("a", 0), ("b", 0)}


def test_what_is_still_on_the_device_is_not_copied_back(engine):
    made = engine(
        request("a", 4, max_tokens=9),
        request("b", [1, 2, 3, 4, 5, 6, 7, 8], max_tokens=8),
        num_blocks=5,
        preemption_mode="swap",
    )
    steps = made.run()
    out, back = sum(len(s.swap_out) for s in steps), sum(len(s.swap_in) for s in steps)
    assert 0 < back < out


# ---- prefix cache


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


# ---- several answers


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


# ---- abort


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


# ---- settling


@pytest.mark.parametrize(
    ("params", "token_ids", "end"),
    [
        pytest.param({}, [9, 7], ("stop", 7), id="the model's end"),
        pytest.param({"ignore_eos": True, "max_tokens": 2}, [7, 7], ("length", None), id="ignored"),
        pytest.param({"stop_token_ids": (9,)}, [9], ("stop", 9), id="a stop token"),
        pytest.param({"stop_token_ids": (9,), "ignore_eos": True}, [7, 9], ("stop", 9), id="a stop token all the same"),
        pytest.param({"min_tokens": 2}, [7, 7, 7], ("stop", 7), id="not among the first two"),
        pytest.param({"max_tokens": 3}, [1, 2, 3], ("length", None), id="as long as asked for"),
        pytest.param({"max_tokens": 2}, [1, 7], ("stop", 7), id="a stop at the last moment"),
        pytest.param({"max_tokens": None}, [1, 2, 3, 4, 5], ("length", None), id="the window"),
        pytest.param({"max_tokens": 99}, [1, 2, 3, 4, 5], ("length", None), id="the window before the wish"),
    ],
)
def test_what_ends_a_sequence(params, token_ids, end):
    scheduler = Scheduler(config(max_model_len=10, eos_token_ids=frozenset({7})))
    scheduler.add(request("a", 5, **params))
    ends = []
    for token_id in token_ids:
        assert scheduler.has_work()
        (settled,) = scheduler.settle(scheduler.schedule(), [token_id])
        assert settled.token_id == token_id
        ends.append((settled.finish_reason, settled.stop_token_id))
    assert ends == [(None, None)] * (len(token_ids) - 1) + [end]
    assert not scheduler.has_work()


@pytest.mark.parametrize("n", [1, 3])
def test_a_prompt_that_is_only_scored_samples_nothing(n):
    scheduler = Scheduler(config(max_num_batched_tokens=4))
    scheduler.add(request("a", 6, max_tokens=0, prompt_logprobs=0, n=n))
    assert scheduler.settle(scheduler.schedule(), []) == []
    step = scheduler.schedule()
    assert step.sampling() == []
    settled = scheduler.settle(step, [])
    assert [(s.sequence.index, s.token_id, s.finish_reason) for s in settled] == [(i, None, "length") for i in range(n)]
    assert not scheduler.has_work()


@pytest.mark.parametrize("token_ids", [[], [1, 2]])
def test_settle_wants_one_token_for_each_that_samples(token_ids):
    scheduler = Scheduler(config())
    scheduler.add(request("a"))
    with pytest.raises(ValueError, match="1 tokens"):
        scheduler.settle(scheduler.schedule(), token_ids)


# ---- stats and log


def test_stats_of_a_run(engine):
    made = engine(request("a", arrival=3.0), request("b", arrival=4.0), request("c", arrival=5.0), max_num_seqs=1)
    stats = made.scheduler.stats()
    assert (stats.running, stats.waiting, stats.oldest_arrival) == (0, 3, 3.0)
    made.step()
    stats = made.scheduler.stats()
    assert (stats.running, stats.waiting, stats.oldest_arrival) == (1, 2, 4.0)
    assert (stats.blocks_used, stats.blocks_free + stats.blocks_cached + stats.blocks_used) == (2, 32)
    made.run()
    stats = made.scheduler.stats()
    assert (stats.steps, stats.block_allocations, stats.prefix_query_tokens) == (24, 9, 15)
    assert made.scheduler.prefix_lengths.prompts == 3


def test_a_preempted_sequence_waits_but_is_not_the_oldest_that_waits(engine):
    made = engine(request("a", 4, max_tokens=12), request("b", 4, max_tokens=12, arrival=1.0), num_blocks=5)
    while not made.scheduler.stats().preemptions_recompute:
        made.step()
    stats = made.scheduler.stats()
    assert (stats.waiting, stats.oldest_arrival) == (1, None)


@pytest.mark.parametrize(
    ("prompt", "answer", "seqs", "admissible"),
    [
        pytest.param(8, 8, 64, 10, id="memory: 128 tokens at 12 on average over a life"),
        pytest.param(8, 8, 6, 6, id="max_num_seqs"),
        pytest.param(60, 4, 64, 2, id="long prompts"),
    ],
)
def test_admissible_sequences(engine, prompt, answer, seqs, admissible):
    made = engine(request("a", prompt, max_tokens=answer), max_num_seqs=seqs)
    assert made.scheduler.stats().admissible_seqs == seqs
    made.run()
    assert made.scheduler.stats().admissible_seqs == admissible


def test_every_allocation_and_release_is_logged():
    events = []
    scheduler = Scheduler(config(), lambda *event: events.append(event))
    scheduler.add(request("a", 6, n=2, max_tokens=2))
    scheduler.settle(scheduler.schedule(), [1, 2])
    scheduler.settle(scheduler.schedule(), [1, 2])
    assert events == [
        ("allocate", "a", 0, [0, 1]),
        ("allocate", "a", 1, [0, 1]),
        ("allocate", "a", 0, [2]),
        ("release", "a", 0, [1]),
        ("release", "a", 1, [0, 1]),
        ("release", "a", 0, [0, 2]),
    ]


# ---- cost and purity


def test_a_step_of_512_decodes_takes_less_than_two_milliseconds():
    steps = 40
    scheduler = Scheduler(
        config(num_blocks=512 * 16, max_num_seqs=512, max_num_batched_tokens=8192, block_size=16, max_queue_len=512)
    )
    for i in range(512):
        scheduler.add(request(f"r{i}", [i] * 16, max_tokens=steps + 2))
    best = float("inf")
    for _ in range(steps):
        start = time.perf_counter()
        scheduler.settle(scheduler.schedule(), [7] * 512)
        best = min(best, time.perf_counter() - start)
    assert scheduler.stats().running == 512
    assert best < 2e-3


def test_the_scheduler_imports_neither_torch_nor_numpy():
    code = "import sys, pagetide_server.engine.scheduler; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
