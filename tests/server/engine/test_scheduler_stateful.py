"""Thousands of random arrivals, aborts, preemptions, swaps and shortages, with every invariant checked each step."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from pagetide_server.engine.messages import AddRequest, SamplingParams
from pagetide_server.engine.scheduler import RequestRefused, Scheduler, SchedulerConfig

CONFIGS = st.builds(
    SchedulerConfig,
    block_size=st.sampled_from([1, 2, 4]),
    num_blocks=st.integers(4, 24),
    num_swap_blocks=st.sampled_from([0, 3, 12, 40]),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 24),
    max_model_len=st.integers(8, 40),
    enable_prefix_caching=st.booleans(),
    enable_chunked_prefill=st.sampled_from([True, True, False]),
    policy=st.sampled_from(["fcfs", "priority"]),
    preemption_mode=st.sampled_from(["auto", "swap", "recompute"]),
    max_queue_len=st.integers(1, 12),
    eos_token_ids=st.sampled_from([frozenset(), frozenset({3, 17})]),
    # With the first an auto preemption recomputes, with the second it swaps all but the shortest.
    swap_bytes_per_second=st.sampled_from([1e6, 3e9]),
)

# Few different prompts that begin alike, so that prefixes are shared and diverge in the middle of a block.
PROMPTS = st.builds(
    lambda common, base, own: [(base + i) % 7 for i in range(common)] + own,
    common=st.integers(0, 20),
    base=st.integers(0, 1),
    own=st.lists(st.integers(0, 6), min_size=0, max_size=6),
).filter(bool)

PARAMS = st.builds(
    SamplingParams,
    n=st.sampled_from([1, 1, 1, 2, 3]),
    best_of=st.sampled_from([None, None, 3]),
    max_tokens=st.one_of(st.integers(0, 20), st.none()),
    min_tokens=st.sampled_from([0, 0, 3]),
    ignore_eos=st.booleans(),
    stop_token_ids=st.sampled_from([(), (5,)]),
    prompt_logprobs=st.sampled_from([None, None, None, 1]),
)


class Traffic(RuleBasedStateMachine):
    """A scheduler under random traffic; `engine_class` is set by the test."""

    engine_class: type

    @initialize(config=CONFIGS)
    def start(self, config):
        self.scheduler = Scheduler(config, self.on_block_event)
        self.engine = self.engine_class(self.scheduler)
        self.admitted, self.aborted = {}, set()
        self.held, self.refused = {}, 0
        self.arrivals = 0

    def on_block_event(self, event, request_id, index, block_ids):
        held = self.held.setdefault(request_id, [])
        for block in block_ids:
            (held.append if event == "allocate" else held.remove)(block)

    @rule(prompt=PROMPTS, params=PARAMS, priority=st.integers(-1, 1), salt=st.sampled_from(["", "", "a"]))
    def arrive(self, prompt, params, priority, salt):
        self.arrivals += 1
        request = AddRequest(
            request_id=f"r{self.arrivals}",
            prompt_token_ids=prompt,
            params=params,
            arrival=float(self.arrivals),
            priority=priority,
            cache_salt=salt,
        )
        try:
            self.scheduler.add(request)
        except RequestRefused:
            self.refused += 1
        else:
            self.admitted[request.request_id] = max(params.n, params.best_of or 0)
        self.scheduler.check_integrity()

    @precondition(lambda self: self.scheduler.has_work())
    @rule(steps=st.integers(1, 6))
    def step(self, steps):
        for _ in range(steps):
            if self.scheduler.has_work():
                self.check_step(self.engine.step())

    @precondition(lambda self: self.admitted)
    @rule(data=st.data())
    def abort(self, data):
        self.abort_some(data)
        self.scheduler.check_integrity()

    @precondition(lambda self: self.scheduler.has_work())
    @rule(data=st.data())
    def abort_while_a_step_runs(self, data):
        step = self.engine.plan()
        self.check_step(step)
        token_ids = self.engine.memory.execute(step)
        self.abort_some(data)
        self.engine.settle(step, token_ids)

    def abort_some(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.admitted)), label="request")
        index = data.draw(st.sampled_from([None, 0, 1]), label="index")
        for sequence in self.scheduler.abort(request_id, index):
            assert sequence.request_id == request_id
            assert index is None or sequence.index == index
            key = (request_id, sequence.index)
            assert key not in self.engine.ended
            assert key not in self.aborted
            self.aborted.add(key)

    def check_step(self, step):
        if step.preempted and self.scheduler.config.policy != "priority":
            assert not step.started, "a step that preempted admitted somebody"
            assert not step.swap_in, "a step that preempted swapped in"
        for sequence in step.started:
            if sequence.params.prompt_logprobs is not None:
                assert sequence.cached_tokens == 0, "a prompt to be scored was not computed in full"

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        self.engine.run()
        self.engine.check_empty()
        answers = {(request, i) for request, count in self.admitted.items() for i in range(count)}
        assert answers == set(self.engine.ended) | self.aborted, "a request was dropped"
        assert not set(self.engine.ended) & self.aborted
        assert not any(self.held.values()), "the block log does not balance"


@pytest.mark.parametrize(
    ("runs", "length"),
    [pytest.param(150, 40, id="many short runs"), pytest.param(25, 200, id="few long runs")],
)
def test_random_traffic_keeps_every_invariant_and_finishes_every_request(toy_engine, runs, length):
    machine = type("TrafficOnToyMemory", (Traffic,), {"engine_class": toy_engine})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=runs,
            stateful_step_count=length,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
