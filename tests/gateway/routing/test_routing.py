"""The router as a pure function of what it was told: no clock, no sockets."""

from __future__ import annotations

import random
import sys
from collections import Counter

import pytest

from pagetide_gateway.replicas.registry import ALL_BLOCKS, Registry
from pagetide_gateway.routing.prefix_index import MAX_BLOCKS, PrefixIndex
from pagetide_gateway.routing.rate import FleetRate
from pagetide_gateway.routing.rendezvous import highest
from pagetide_gateway.routing.replica_load import STALE_S, ReplicaLoad
from pagetide_gateway.routing.routers import ExpectedTime, Figures, Prompt, RoundRobin, Ticket

ABC = ("a", "b", "c")


def prompt(*blocks: int, block_tokens: float = 100, **more) -> Prompt:
    return Prompt(blocks, len(blocks) * block_tokens, block_tokens, **more)


def go(router, what: Prompt, now: float = 0.0, candidates=ABC) -> Ticket:
    return router.send(what, router.choose(what, candidates, now), now)


def done(router, ticket: Ticket, now: float) -> None:
    router.first_token(ticket, now)
    router.end(ticket, now)


def turns(*candidates, router=None) -> str:
    router = router or RoundRobin()
    return "".join(go(router, Prompt(), candidates=c).replica for c in candidates)


def test_round_robin_takes_each_in_turn():
    assert turns(*[ABC] * 7) == "abcabca"


def test_round_robin_is_not_thrown_off_by_one_that_comes_and_goes():
    assert turns(ABC, ("a", "c"), ("a", "c"), ABC, ABC) == "acabc"


def test_a_known_beginning_goes_where_it_is():
    router = ExpectedTime()
    first = go(router, prompt(1, 2, 3))
    done(router, first, 0.1)
    choice = router.choose(prompt(1, 2, 3, 4), ABC, 1.0)
    assert (choice.replica, choice.reason) == (first.replica, "prefix")
    assert (choice.cached_tokens, choice.uncached_tokens) == (300, 100)


def test_a_long_queue_outweighs_a_short_prefix():
    router = ExpectedTime()
    first = go(router, prompt(1, 2, 3))
    router.first_token(first, 0.1)
    for i in range(3):
        what = prompt(*range(100 + 100 * i, 150 + 100 * i))
        router.send(what, router.choose(what, [first.replica], 0.2), 0.2)
    assert router.choose(prompt(1, 2, 3, 4), ABC, 0.2).replica != first.replica


def test_an_unknown_beginning_goes_to_the_same_replica_from_every_gateway():
    for block in range(50):
        choices = {ExpectedTime().choose(prompt(block, 7), order, 0.0).replica for order in (ABC, ("c", "a", "b"))}
        assert len(choices) == 1
    spread = Counter(ExpectedTime().choose(prompt(block), ABC, 0.0).replica for block in range(300))
    assert min(spread.values()) > 60


def test_gateways_that_know_a_common_beginning_agree_on_what_follows_it():
    one, two = ExpectedTime(), ExpectedTime()
    for router in (one, two):
        for name in ABC:
            done(router, go(router, prompt(1, 2), candidates=[name]), 0.0)
    for block in range(100, 150):
        what = prompt(1, 2, block)
        assert one.choose(what, ABC, 9.0).replica == two.choose(what, ABC, 9.0).replica


def test_prompts_too_short_to_be_cached_take_turns():
    router, sent = ExpectedTime(), []
    for i in range(6):
        ticket = go(router, Prompt(tokens=5), i)
        done(router, ticket, i + 0.1)
        sent.append(ticket.replica)
    assert sent == list("abcabc")


def test_a_session_stays_with_its_replica_whatever_the_load():
    router = ExpectedTime()
    pinned = [go(router, prompt(i, session="s")).replica for i in range(30)]
    assert len(set(pinned)) == 1
    others = [name for name in ABC if name != pinned[0]]
    assert router.choose(prompt(1, session="s"), others, 0.0).reason == "session"


def test_a_session_moves_only_when_its_replica_leaves():
    router, sessions = ExpectedTime(), [f"s{i}" for i in range(100)]

    def where(candidates):
        return {s: router.choose(prompt(1, session=s), candidates, 0.0).replica for s in sessions}

    before, after = where(ABC), where(("a", "b"))
    assert all(after[s] == name for s, name in before.items() if name != "c")


@pytest.mark.parametrize("is_streamed", [True, False])
def test_one_beginning_that_all_share_does_not_spiral_onto_one_replica(is_streamed):
    """A hot prefix and long answers: consistent hashing alone would send everything to one."""
    router = ExpectedTime()
    sent = Counter()
    for i in range(300):
        ticket = go(router, prompt(*range(10), 1000 + i, is_streamed=is_streamed), i * 0.01)
        router.first_token(ticket, i * 0.01 + 0.005)
        sent[ticket.replica] += 1
    assert max(sent.values()) <= 1.5 * 300 / 3 + 5


def test_a_faster_replica_gets_more():
    router = ExpectedTime()
    for i in range(20):
        for name, seconds in (("a", 0.01), ("b", 0.1)):
            done(router, go(router, prompt(*range(i * 10, i * 10 + 10)), i, [name]), i + seconds)
    sent = Counter(
        go(router, prompt(*range(9000 + i * 10, 9010 + i * 10)), 100.0, ("a", "b")).replica for i in range(22)
    )
    assert sent["a"] > sent["b"]


def test_one_that_was_never_measured_is_not_shunned_for_the_speed_of_another():
    router, sent = ExpectedTime(), Counter()
    for i in range(60):
        ticket = go(router, prompt(*range(i * 10, i * 10 + 10)), float(i))
        done(router, ticket, i + 0.002)  # far above the default rate
        sent[ticket.replica] += 1
    assert min(sent[name] for name in ABC) > 5


def test_one_that_was_slow_once_is_tried_again():
    router = ExpectedTime()
    for name, seconds in (("a", 0.1), ("b", 5.0)):
        done(router, go(router, prompt(*range(10)), 0.0, [name]), seconds)
    soon, late = (
        {router.choose(prompt(*range(100 * i, 100 * i + 10)), ("a", "b"), now).replica for i in range(1, 40)}
        for now in (10.0, 1200.0)
    )
    assert (soon, late) == ({"a"}, {"a", "b"})


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


def test_rendezvous_moves_only_what_it_must():
    keys = [str(i).encode() for i in range(200)]
    before, after = ({k: highest(k, names) for k in keys} for names in (ABC, (*ABC, "d")))
    assert {after[k] for k in keys if after[k] != before[k]} == {"d"}
