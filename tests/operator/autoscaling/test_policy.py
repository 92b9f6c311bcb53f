"""What is decided from what the load asks for: one row a rule."""

import dataclasses

import pytest

from pagetide_operator.autoscaling.behavior import Change, Wish
from pagetide_operator.autoscaling.guard import GUARD_S
from pagetide_operator.autoscaling.policy import Memory, decide, remembered, with_change
from pagetide_operator.autoscaling.signals import Observation

NOW = 10_000.0
QUICK = {"scaleDown": {"stabilizationWindowSeconds": 0}}


def rate_after(scaling, *observations):
    memory = Memory(busy_at=NOW)
    for count, loads in enumerate(observations):
        seen = Observation(len(loads), loads, settled=len(loads))
        memory = decide(seen, scaling(), memory, None, NOW + 5 * count).memory
    found = decide(Observation(1), scaling(), memory, None, NOW + 5 * (len(observations) - 1))
    return found.seen.rate and round(found.seen.rate)


def test_the_rate_of_a_full_replica_is_learned(scaling, load):
    full, half = load(full_rate=100, served=90), load(served=50)
    assert rate_after(scaling, [half]) is None, "one that is not full says nothing"
    assert rate_after(scaling, [full]) == 100
    assert rate_after(scaling, [full, half]) == 100
    assert rate_after(scaling, [full], [load(full_rate=200, served=200)]) == 130, "one scrape is uneven: it counts 0.3"
    assert rate_after(scaling, [full], [load(served=120)]) == 120, "all on average do more and are not full"
    late = load(lacks_room=True, waiting=1, oldest_waiting=9.0, demand=40, served=30)
    assert rate_after(scaling, [full], [late]) == 50, "they wait too long at 40, which is to be 0.8 of it"


def test_a_learned_rate_is_tried_out_again_in_time(scaling, load):
    memory = decide(Observation(1, [load(full_rate=100, served=90)]), scaling(), Memory(), None, NOW).memory
    assert decide(Observation(1, [load()]), scaling(), memory, None, NOW + 600).seen.rate == pytest.approx(110)


def decision(scaling, observation, memory=None, wake=None, now=NOW, **fields):
    memory = memory or Memory(busy_at=now)
    return decide(observation, scaling(**fields), memory, wake, now)


@pytest.mark.parametrize(
    ("observation", "settings", "replicas", "winner", "limiter"),
    [
        pytest.param({"desired": 1, "loads": [(10, 20)]}, {}, 4, "batch", "", id="grows"),
        pytest.param({"desired": 1, "loads": [(10, 999)]}, {"maxReplicas": 3}, 3, "batch", "MaxReplicas", id="most"),
        pytest.param({"desired": 3, "loads": [(0, 0)] * 3}, {"behavior": QUICK}, 2, "batch", "OneAtATime",
                     id="one leaves at a time"),
        pytest.param({"desired": 2, "loads": [(0, 0)] * 2}, {"minReplicas": 2}, 2, "batch", "MinReplicas",
                     id="the least"),
        pytest.param({"desired": 2, "loads": [], "missing": 2}, {"behavior": QUICK}, 2, "", "", id="no data"),
        pytest.param({"desired": 3, "loads": [], "starting": 3}, {"behavior": QUICK}, 3, "", "", id="all are starting"),
        pytest.param({"desired": 5, "loads": [(10, 28)], "starting": 4}, {}, 5, "batch", "",
                     id="no cascade while pods are pending"),
        pytest.param({"desired": 2, "loads": [(10, 20)], "starting": 1}, {}, 4, "batch", "",
                     id="one unready pod does not stall the others"),
    ],
)  # fmt: skip
def test_decisions(scaling, load, observation, settings, replicas, winner, limiter):
    loads = [load(running=r, waiting=w) for r, w in observation["loads"]]
    found = decision(scaling, Observation(**{**observation, "loads": loads}), **settings)
    assert (found.replicas, found.winner, found.limiter) == (replicas, winner, limiter)


def test_nothing_shrinks_before_five_minutes_have_agreed(scaling, load):
    memory, idle = Memory(busy_at=0.0), Observation(2, [load(), load()])
    memory = dataclasses.replace(memory, wishes=(Wish(NOW - 1, 2),))
    for at in range(0, 300, 5):
        found = decision(scaling, idle, memory, now=NOW + at)
        assert (found.replicas, found.limiter) == (2, "StabilizationWindow"), at
        memory = found.memory
    assert decision(scaling, idle, memory, now=NOW + 300).replicas == 1


def test_silence_within_the_window_puts_shrinking_off(scaling, load):
    memory = decision(scaling, Observation(2, [load(), load()])).memory
    memory = decision(scaling, Observation(2, missing=2), memory, now=NOW + 5).memory
    assert decision(scaling, Observation(2, [load(), load()]), memory, now=NOW + 301).replicas == 2
    assert decision(scaling, Observation(2, [load(), load()]), memory, now=NOW + 306).replicas == 1


def test_a_restart_forgets_no_change_and_shrinks_nothing_at_once(scaling, load):
    memory = remembered([Change(NOW - 5, 1, 5)], 5, NOW)
    quiet = Observation(5, [load()] * 5)
    assert decision(scaling, quiet, memory).replicas == 5
    full = Observation(5, [load(running=10, waiting=90)] * 5)
    assert decision(scaling, full, memory).limiter == "ScalingPolicy", "the policies count what was added before"


@pytest.mark.parametrize(
    ("hot", "replicas", "limiter"),
    [
        pytest.param(400, 1, "", id="one replica holds what both have"),
        pytest.param(600, 2, "CacheGuard", id="the blocks that requests come back to need both"),
    ],
)
def test_the_cache_guards_a_replica(scaling, load, hot, replicas, limiter):
    warm = load(kv_used=50, kv_cached=900, hit_tokens=hot, query_tokens=1000)
    found = decision(scaling, Observation(2, [warm, warm]), behavior=QUICK)
    assert (found.replicas, found.limiter) == (replicas, limiter)


def test_the_guard_is_bounded(scaling, load):
    warm = Observation(2, [load(kv_cached=900, hit_tokens=900, query_tokens=1000)] * 2)
    memory = decision(scaling, warm, behavior=QUICK).memory
    assert decision(scaling, warm, memory, now=NOW + GUARD_S - 1, behavior=QUICK).replicas == 2
    assert decision(scaling, warm, memory, now=NOW + GUARD_S, behavior=QUICK).replicas == 1


ZERO = {"minReplicas": 0, "idleSeconds": 60}


@pytest.mark.parametrize(
    ("observation", "idle_for", "wake", "settings", "replicas"),
    [
        pytest.param({"desired": 1, "loads": [{}]}, 59, None, ZERO, 1, id="not idle for long enough"),
        pytest.param({"desired": 1, "loads": [{}]}, 60, None, ZERO, 0, id="idle"),
        pytest.param({"desired": 3, "loads": [{}] * 3}, 60, None, ZERO, 2, id="idle: one after the other"),
        pytest.param({"desired": 1, "loads": [{}]}, 60, None, {"minReplicas": 1, "idleSeconds": 60}, 1, id="least 1"),
        pytest.param({"desired": 1, "loads": [{"is_busy": True}]}, 60, None, ZERO, 1, id="it had a request just now"),
        pytest.param({"desired": 1, "loads": [{}]}, 60, NOW - 59, ZERO, 1, id="it was woken less than that ago"),
        pytest.param({"desired": 1, "loads": [{}]}, 60, NOW + 9e9, ZERO, 1, id="woken by a clock that is ahead"),
        pytest.param({"desired": 2, "loads": [{}], "starting": 1}, 60, None, ZERO, 2, id="one is still loading"),
        pytest.param({"desired": 2, "loads": [{}], "missing": 1}, 60, None, ZERO, 2, id="one is silent"),
        pytest.param({"desired": 1, "loads": [], "missing": 1}, 999, None, ZERO, 1, id="the only one is silent"),
        pytest.param({"desired": 1, "loads": [{}]}, 60, None, {
            **ZERO, "behavior": {"scaleDown": {"selectPolicy": "Disabled"}}}, 1, id="shrinking is disabled"),
    ],
)  # fmt: skip
def test_to_zero(scaling, load, observation, idle_for, wake, settings, replicas):
    seen = Observation(**{**observation, "loads": [load(**fields) for fields in observation["loads"]]})
    memory = Memory(busy_at=NOW - idle_for, wishes=(Wish(NOW - 1, seen.desired),))
    assert decision(scaling, seen, memory, wake, **settings).replicas == replicas


def test_a_service_without_a_request_since_the_restart_goes_to_zero_all_the_same(scaling, load):
    memory, idle = remembered([], 1, NOW), Observation(1, [load()])
    for at in range(0, 60, 5):
        found = decision(scaling, idle, memory, now=NOW + at, **ZERO)
        assert found.replicas == 1
        memory = found.memory
    assert decision(scaling, idle, memory, now=NOW + 60, **ZERO).replicas == 0


@pytest.mark.parametrize(
    ("slept", "wake", "settings", "replicas"),
    [
        pytest.param(NOW - 10, None, {}, 0, id="nobody asks"),
        pytest.param(NOW - 10, NOW - 10 - 61, {}, 0, id="the ask of long ago"),
        pytest.param(NOW - 10, NOW, {}, 1, id="a request is held"),
        pytest.param(NOW - 10, NOW - 20, {}, 1, id="a request is held, by a clock that is behind"),
        pytest.param(None, NOW - 500, {}, 1, id="it never slept before"),
        pytest.param(
            NOW - 10, NOW, {"behavior": {"scaleUp": {"selectPolicy": "Disabled"}}}, 1, id="whatever policies say"
        ),
    ],
)
def test_waking(scaling, slept, wake, settings, replicas):
    memory = Memory()
    if slept is not None:
        memory = with_change(memory, 1, 0, scaling(**ZERO), slept)
    found = decision(scaling, Observation(0), memory, wake, **{**ZERO, **settings})
    assert found.replicas == replicas
