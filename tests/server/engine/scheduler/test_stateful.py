"""Thousands of random arrivals, aborts, preemptions, swaps and shortages, with every invariant checked each step."""

from __future__ import annotations

from collections import Counter
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from pagetide_server.engine.scheduler import RequestRefused, Scheduler, SchedulerConfig
from pagetide_server.wire.messages import AddRequest, SamplingParams

# One drawn number stands for a whole request or setting: thousands of them would take hypothesis minutes to draw.
SEEDS = st.integers(0, 2**32 - 1)


def random_config(random: Random, **fixed) -> SchedulerConfig:
    """Little memory, few slots, short steps: shortage is the rule."""
    block_size = random.choice([1, 2, 4])
    window = random.randint(10, 40)
    return SchedulerConfig(
        block_size=block_size,
        # Room for one to three of the longest sequences; sometimes not even for one.
        num_blocks=int(window * random.uniform(0.8, 3)) // block_size + 1,
        num_swap_blocks=random.choice([0, 5, 20, 40]),
        max_num_seqs=random.randint(1, 8),
        max_num_batched_tokens=random.randint(1, 24),
        max_model_len=window,
        enable_prefix_caching=random.random() < 0.7,
        enable_chunked_prefill=random.random() < 0.7,
        max_queue_len=random.randint(4, 20),
        max_scored_tokens=random.choice([1, 3, 256]),
        eos_token_ids=random.choice([frozenset(), frozenset({3, 17})]),
        # With the first, mode `auto` always recomputes; with the second it swaps what shares no blocks.
        swap_bytes_per_second=random.choice([1e6, 1e13]),
        **fixed,
    )


def random_request(random: Random, number: int) -> AddRequest:
    """One of few beginnings, cut anywhere, so that prefixes are shared and part in the middle of a block."""
    base = random.choice([0, 0, 1])
    prompt = [(base + i) % 7 for i in range(random.choice([0, 4, 8, 9, 15]))]
    prompt += [random.randrange(7) for _ in range(random.randint(not prompt, 5))]
    params = SamplingParams(
        n=random.choice([1, 1, 1, 2, 3]),
        best_of=random.choice([None] * 9 + [4]),
        max_tokens=random.choice([None, 0, 1, 3, 8, 15, 20]),
        min_tokens=random.choice([0, 0, 3]),
        ignore_eos=random.random() < 0.5,
        stop_token_ids=random.choice([(), (5,)]),
        prompt_logprobs=random.choice([None, None, None, 1]),
    )
    return AddRequest(
        request_id=f"r{number}",
        prompt_token_ids=prompt,
        params=params,
        arrival=float(number),
        priority=random.randint(-1, 1),
        cache_salt=random.choice(["", "", "", "a"]),
    )


class Traffic(RuleBasedStateMachine):
    """A scheduler under random traffic; the test sets the class attributes."""

    engine_class: type
    fixed: dict
    seen: Counter

    @initialize(seed=SEEDS)
    def start(self, seed):
        self.scheduler = Scheduler(random_config(Random(seed), **self.fixed), self.on_block_event)
        self.engine = self.engine_class(self.scheduler)
        self.admitted, self.aborted, self.failed = {}, set(), set()
        self.held = {}
        self.arrivals, self.last_started = 0, -1

    def on_block_event(self, event, request_id, index, block_ids):
        held = self.held.setdefault(request_id, [])
        for block in block_ids:
            (held.append if event == "allocate" else held.remove)(block)

    @rule(seed=SEEDS, count=st.integers(1, 6))
    def arrive(self, seed, count):
        random = Random(seed)
        for _ in range(count):
            self.arrivals += 1
            self.add(random_request(random, self.arrivals))
        self.scheduler.check_integrity()

    def add(self, request):
        try:
            self.scheduler.add(request)
        except RequestRefused:
            self.seen["refused requests"] += 1
        else:
            self.admitted[request.request_id] = max(request.params.n, request.params.best_of or 0)

    @precondition(lambda self: self.scheduler.has_work())
    @rule(steps=st.integers(1, 20))
    def step(self, steps):
        for _ in range(steps):
            if self.scheduler.has_work():
                self.check_step(self.engine.step())

    @precondition(lambda self: self.scheduler.has_work())
    @rule(seed=SEEDS)
    def abort(self, seed):
        self.abort_some(Random(seed))
        self.scheduler.check_integrity()

    @precondition(lambda self: self.scheduler.has_work())
    @rule(seed=SEEDS)
    def abort_while_a_step_runs(self, seed):
        step = self.engine.plan()
        self.check_step(step)
        token_ids = self.engine.memory.execute(step)
        self.abort_some(Random(seed))
        self.engine.settle(step, token_ids)

    @precondition(lambda self: self.scheduler.has_work())
    @rule()
    def a_step_fails(self):
        """Nothing of it is executed: whoever had a part in it cannot go on, everybody else can."""
        step = self.engine.plan()
        self.check_step(step)
        for sequence in step.touched():
            for ended in self.scheduler.fail(sequence):
                self.failed.add((ended.request_id, ended.index))
        self.scheduler.check_integrity()
        self.seen["failed steps"] += 1

    def abort_some(self, random):
        # The newest ones are likely to be unfinished.
        request_id = random.choice(list(self.admitted)[-12:])
        index = random.choice([None, 0, 1])
        for sequence in self.scheduler.abort(request_id, index):
            assert sequence.request_id == request_id
            assert index is None or sequence.index == index
            key = (request_id, sequence.index)
            assert key not in self.engine.ended
            assert key not in self.aborted | self.failed
            self.aborted.add(key)

    def check_step(self, step):
        self.count(step)
        if step.preempted:
            # The one that the others were preempted for is the only one that may join.
            joined = len(step.started) + bool(step.swap_in)
            assert joined <= (self.scheduler.config.policy == "priority"), "a step that preempted admitted somebody"
        if self.scheduler.config.policy == "fcfs" and step.started:
            orders = [self.last_started, *(sequence.arrival_order for sequence in step.started)]
            assert orders == sorted(orders), "a request was overtaken"
            assert self.scheduler.stats().swapped == 0, "a new request came before one that was swapped out"
            self.last_started = orders[-1]
        for sequence in step.started:
            if sequence.params.prompt_logprobs is not None:
                assert sequence.cached_tokens == 0, "a prompt to be scored was not computed in full"

    def count(self, step):
        self.seen["steps"] += 1
        self.seen["blocks swapped out"] += len(step.swap_out)
        self.seen["blocks swapped in"] += len(step.swap_in)
        self.seen["blocks copied on write"] += len(step.copies)
        self.seen["preempted sequences"] += len(step.preempted)
        self.seen["requests that others gave way to"] += bool(step.preempted and step.started)
        self.seen["pieces of prompts"] += sum(not row.samples for row in step.rows)
        self.seen["forks"] += sum(bool(row.siblings) for row in step.rows)
        self.seen["cached tokens"] += sum(sequence.cached_tokens for sequence in step.started)

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        self.engine.run()
        self.engine.check_empty()
        answers = {(request, i) for request, count in self.admitted.items() for i in range(count)}
        assert answers == set(self.engine.ended) | self.aborted | self.failed, "a request was dropped"
        assert not set(self.engine.ended) & (self.aborted | self.failed)
        assert not any(self.held.values()), "the block log does not balance"
        self.seen["steps begun ahead"] += getattr(self.engine, "begun_ahead", 0)
        self.seen["finished answers"] += len(self.engine.ended)
        self.seen["aborted answers"] += len(self.aborted)


ALWAYS = {
    "failed steps",
    "aborted answers",
    "blocks copied on write",
    "cached tokens",
    "finished answers",
    "forks",
    "pieces of prompts",
    "preempted sequences",
    "refused requests",
}
SWAPS = {"blocks swapped out", "blocks swapped in"}
GIVES_WAY = {"requests that others gave way to"}


@pytest.mark.parametrize(
    ("policy", "mode", "must_happen"),
    [
        pytest.param("fcfs", "swap", ALWAYS | SWAPS, id="in order of arrival, swapping"),
        pytest.param("fcfs", "recompute", ALWAYS, id="in order of arrival, recomputing"),
        pytest.param("fcfs", "auto", ALWAYS | SWAPS, id="in order of arrival, the cheaper of both"),
        pytest.param("priority", "swap", ALWAYS | SWAPS | GIVES_WAY, id="by priority, swapping"),
        pytest.param("priority", "recompute", ALWAYS | GIVES_WAY, id="by priority, recomputing"),
    ],
)
def test_random_traffic_keeps_every_invariant_and_finishes_every_request(toy_engine, policy, mode, must_happen):
    check_traffic(toy_engine, policy, mode, must_happen)


@pytest.mark.parametrize(
    ("policy", "mode", "must_happen"),
    [
        pytest.param("fcfs", "swap", ALWAYS | SWAPS, id="in order of arrival, swapping"),
        pytest.param("priority", "recompute", ALWAYS | GIVES_WAY, id="by priority, recomputing"),
    ],
)
def test_running_ahead_of_the_tokens_changes_nothing(ahead_engine, policy, mode, must_happen):
    check_traffic(ahead_engine, policy, mode, must_happen | {"steps begun ahead"})


def check_traffic(engine_class, policy, mode, must_happen):
    seen = Counter()
    fixed = {"policy": policy, "preemption_mode": mode}
    machine = type("TrafficOnToy", (Traffic,), {"engine_class": engine_class, "fixed": fixed, "seen": seen})
    run_state_machine_as_test(
        machine,
        settings=settings(
            # Swapping is the cheaper way for few sequences only: it takes more traffic to see enough of it. What is
            # drawn depends on which modules are loaded, even derandomized, so that there must be plenty.
            max_examples=360 if mode == "auto" else 120,
            stateful_step_count=50,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(dict(seen))
    tame = {what for what in must_happen if seen[what] < 30}
    assert not tame, "the traffic was too tame to prove anything about these"
