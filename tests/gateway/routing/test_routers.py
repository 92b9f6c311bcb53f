"""The routers as pure functions of what they were told: no clock, no sockets."""

from __future__ import annotations

from collections import Counter

import pytest

from pagetide_gateway.routing.rendezvous import highest
from pagetide_gateway.routing.routers import ExpectedTime, Prompt

from .routes import ABC, done, go, prompt, turns


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


def test_rendezvous_moves_only_what_it_must():
    keys = [str(i).encode() for i in range(200)]
    before, after = ({k: highest(k, names) for k in keys} for names in (ABC, (*ABC, "d")))
    assert {after[k] for k in keys if after[k] != before[k]} == {"d"}
