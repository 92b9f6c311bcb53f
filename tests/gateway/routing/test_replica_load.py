"""What one replica has to do, as seen from outside."""

from __future__ import annotations

import pytest

from pagetide_gateway.routing.rate import FleetRate
from pagetide_gateway.routing.replica_load import STALE_S, ReplicaLoad
from pagetide_gateway.routing.routers import ExpectedTime, Figures, Ticket

from .routes import done, go, prompt


def test_the_queue_drains_with_time_even_where_no_first_token_is_seen():
    load = ReplicaLoad(FleetRate())
    for _ in range(3):
        load.add(Ticket("a", 1000, 0.0, is_streamed=False), (), 16, 0, 1000)
    queued = [load.queued_tokens(t) for t in (0.0, 0.05, 0.15, 0.3)]
    assert queued == pytest.approx([3000, 2500, 1500, 0])


def test_the_rate_is_what_was_measured():
    load = ReplicaLoad(FleetRate())
    for i in range(50):
        ticket = Ticket("a", 2000, float(i))
        load.add(ticket, (), 16, 0, 2000)
        load.prefilled(ticket, i + 0.5)
    assert load.rate.value(50.0) == pytest.approx(4000, rel=0.05)


def observed(load: ReplicaLoad, query: float, hit: float, now: float = 0.0, **more) -> None:
    load.observe(Figures(query_tokens=query, hit_tokens=hit, **more), now)


def test_hits_that_do_not_come_lower_what_is_expected_and_come_back_with_them():
    load = ReplicaLoad(FleetRate())
    observed(load, 10_000, 5_000)
    for i in range(1, 9):
        load.add(Ticket("a", 100, 0.0), (1,), 16, 900, 1000)
        observed(load, 10_000 + 1000 * i, 5_000)
    assert load.confidence < 0.1
    for i in range(1, 9):
        load.add(Ticket("a", 100, 0.0), (1,), 16, 900, 1000)
        observed(load, 18_000 + 1000 * i, 5_000 + 900 * i)
    assert load.confidence > 0.9


def test_counters_that_begin_anew_mean_an_empty_cache():
    load = ReplicaLoad(FleetRate())
    load.add(Ticket("a", 100, 0.0), (1, 2), 16, 0, 100)
    observed(load, 10_000, 5_000)
    observed(load, 10, 0)
    assert len(load.index) == 0


def test_what_other_gateways_sent_counts_while_the_figures_are_fresh():
    router = ExpectedTime()
    router.observe("a", Figures(running=200, waiting=50), 0.0)
    router.observe("b", Figures(running=0, waiting=0), 0.0)
    near = {router.choose(prompt(i), ("a", "b"), 1.0).replica for i in range(20)}
    stale = {router.choose(prompt(i), ("a", "b"), STALE_S + 1).replica for i in range(20)}
    assert (near, stale) == ({"b"}, {"a", "b"})


def test_a_full_batch_means_waiting_for_a_place():
    router = ExpectedTime()
    for name in ("a", "b"):
        router.observe(name, Figures(max_running=4 if name == "a" else 400), 0.0)
        for i in range(5):
            router.first_token(go(router, prompt(i), 0.0, [name]), 0.0)
    assert {router.choose(prompt(100 + i), ("a", "b"), 0.1).replica for i in range(20)} == {"b"}


def test_one_odd_prompt_does_not_resize_what_is_remembered():
    router = ExpectedTime()
    for i in range(100):
        done(router, go(router, prompt(*range(20 * i, 20 * i + 20), block_tokens=50), i), i)
    router.observe("a", Figures(capacity_tokens=50_000), 100.0)
    index = router._load("a").index
    before = index.capacity
    done(router, go(router, prompt(-1, block_tokens=128), 101), 101)
    done(router, go(router, prompt(block_tokens=1e-6), 102), 102)
    router.observe("a", Figures(capacity_tokens=50_000), 103.0)
    assert index.capacity == pytest.approx(before, rel=0.05)


def test_what_is_refused_says_nothing_of_how_long_answers_take():
    load = ReplicaLoad(FleetRate())
    load.observe(Figures(max_running=1, running=1), 0.0)
    before = load.wait_s(0.0)
    ticket = Ticket("a", 1.0, 0.0)
    load.add(ticket, (), 1.0, 0.0, 1.0)
    load.remove(ticket, 0.001, is_whole=False)
    assert load.wait_s(0.001) == before > 0
