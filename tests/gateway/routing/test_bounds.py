"""What is remembered of prompts is bounded, whatever comes."""

from __future__ import annotations

import random
import sys

from pagetide_gateway.replicas.registry import ALL_BLOCKS, Registry
from pagetide_gateway.routing.prefix_index import MAX_BLOCKS, PrefixIndex
from pagetide_gateway.routing.rate import FleetRate
from pagetide_gateway.routing.replica_load import ReplicaLoad
from pagetide_gateway.routing.routers import ExpectedTime, Figures, Ticket

from .routes import ABC, done, go, prompt


def test_ended_requests_leave_nothing_behind():
    load = ReplicaLoad(FleetRate())
    tickets = [Ticket("a", 1000, i / 10) for i in range(10)]
    for ticket in tickets:
        load.add(ticket, (1,), 16, 0, 1000)
    assert load.queued_tokens(0.9) > 0
    for ticket in tickets:
        load.remove(ticket, 2.0)
        load.remove(ticket, 2.0)
    assert (load.in_flight, load.queued_tokens(2.0)) == (0, 0)


def test_all_indexes_together_are_bounded():
    registry = Registry()
    registry.put("m", {f"m-{i}": f"http://{i}" for i in range(10)})
    first = registry.find("m").router._load("m-0").index
    registry.put("n", {f"n-{i}": f"http://1{i}" for i in range(90)})
    first.resize(10**9)
    assert first.capacity * 100 <= ALL_BLOCKS
    registry.remove("n")
    first.resize(10**9)
    assert first.capacity == MAX_BLOCKS


def test_ten_thousand_random_prefixes_leave_memory_bounded():
    router, generator = ExpectedTime(), random.Random(1)
    for name in ABC:
        router.observe(name, Figures(capacity_tokens=50_000), 0.0)
    for i in range(10_000):
        if i % 1000 == 500:  # once it is known how many tokens a block has
            for name in ABC:
                router.observe(name, Figures(capacity_tokens=50_000), i / 100)
        what = prompt(*(generator.getrandbits(64) for _ in range(20)), block_tokens=50)
        done(router, go(router, what, i / 100), i / 100)
    sizes = [len(router._load(name).index) for name in ABC]
    assert sizes == [1000] * 3
    assert sum(map(sys.getsizeof, (router._load(n).index._blocks for n in ABC))) < 1 << 20


def test_replicas_that_are_gone_are_forgotten():
    router = ExpectedTime()
    ticket = go(router, prompt(1))
    router.retain([name for name in ABC if name != ticket.replica])
    done(router, ticket, 1.0)  # its last words are no error
    assert router.choose(prompt(1), ABC, 1.0).cached_tokens == 0


def test_the_index_forgets_the_end_of_a_prompt_before_its_beginning():
    index = PrefixIndex(4)
    index.add((1, 2, 3))
    index.add((8, 9))
    assert (index.match((1, 2, 3)), index.match((8, 9))) == (2, 2)


def test_a_prompt_longer_than_the_cache_leaves_its_beginning():
    index = PrefixIndex(4)
    index.add(range(10))
    assert index.match(range(10)) == 4


def test_a_replica_that_tells_its_size_is_believed_within_bounds():
    index = PrefixIndex(4)
    index.resize(10**9)
    assert index.capacity < 10**6
    index.resize(0)
    assert index.capacity == 1
