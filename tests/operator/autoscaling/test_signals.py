"""What each signal of load asks for: one row a rule."""

import pytest

from pagetide_operator.autoscaling.signals import Observation, asks


def asked(observation, settings, signal):
    return next(ask.replicas for ask in asks(observation, settings) if ask.signal == signal)


@pytest.mark.parametrize(
    ("desired", "loads", "missing", "wanted"),
    [
        pytest.param(1, [(4, 0)], 0, 1, id="half full: one is enough"),
        pytest.param(1, [(8, 0)], 0, 1, id="at the target"),
        pytest.param(1, [(8, 0.5)], 0, 1, id="within the tolerance"),
        pytest.param(1, [(9, 0)], 0, 2, id="above the target and the tolerance"),
        pytest.param(1, [(10, 40)], 0, 7, id="what waits counts as what runs"),
        pytest.param(2, [(9, 0), (1, 0)], 0, 2, id="the average is within"),
        pytest.param(3, [(1, 0), (1, 0), (0, 0)], 0, 1, id="nearly idle"),
        pytest.param(3, [(7, 0), (8, 0), (8, 0)], 0, 3, id="just below: within the tolerance"),
        pytest.param(3, [(5, 0), (5, 0), (5, 0)], 0, 3, id="two would be full again with the next fluctuation"),
        pytest.param(3, [(5, 0), (4, 0), (4, 0)], 0, 2, id="two have room for a fluctuation"),
        pytest.param(3, [(10, 10)], 0, 3, id="two are still starting: they are the answer already"),
        pytest.param(3, [(10, 30)], 0, 5, id="more than those that start will hold"),
        pytest.param(3, [(1, 0)], 2, 3, id="two are silent: full, when it comes to shrinking"),
        pytest.param(3, [(1, 0), (1, 0)], 1, 2, id="one is silent: the other two may still be too many"),
        pytest.param(2, [(10, 6)], 1, 2, id="one is silent: idle, when it comes to growing"),
        pytest.param(2, [(10, 20)], 1, 4, id="one is silent, and the other alone asks for more"),
    ],
)
def test_by_batch(scaling, load, desired, loads, missing, wanted):
    seen = Observation(desired, [load(running=r, waiting=w) for r, w in loads], missing=missing)
    assert asked(seen, scaling(), "batch") == wanted


@pytest.mark.parametrize("target", [5e-324, 1e-300, 1e-20], ids=lambda t: f"a target of {t}")
def test_a_target_next_to_nothing_asks_for_a_number_that_can_be_written(scaling, load, target):
    settings = scaling(targets={"batchUtilization": target, "kvCacheUtilization": target, "queueTimeSeconds": target})
    seen = Observation(1, [load(running=1, kv_used=1, demand=1.0)], rate=1.0)
    assert [asked(seen, settings, s) for s in ("batch", "memory", "prompt")] == [1_000_000] * 3


@pytest.mark.parametrize(
    ("desired", "used", "wanted"),
    [
        pytest.param(1, [900], 1, id="at the target"),
        pytest.param(1, [1000], 2, id="full"),
        pytest.param(2, [980, 980], 2, id="within the tolerance"),
        pytest.param(4, [300] * 4, 2, id="a third"),
    ],
)
def test_by_memory(scaling, load, desired, used, wanted):
    assert asked(Observation(desired, [load(kv_used=u) for u in used]), scaling(), "memory") == wanted


@pytest.mark.parametrize(
    ("loads", "settled", "wanted"),
    [
        pytest.param([(1, [0.1] * 99)], 1, 0, id="nobody waits long"),
        pytest.param([(0, [3.0] * 99)], 1, 0, id="they waited, and nobody does any more"),
        pytest.param([(1, [3.0] * 99)], 1, 2, id="one: at most the double"),
        pytest.param([(1, [0.6] * 99)], 1, 2, id="at least one more"),
        pytest.param([(1, [3.0] * 99)] * 3, 3, 6, id="three: the double"),
        pytest.param([(1, [3.0] * 99)] * 3, 2, 4, id="one is new: the queue is not its own"),
        pytest.param([(1, [3.0] * 99)], 0, 0, id="it has only just woken"),
        pytest.param([(1, [3.0] * 9)] + [(0, [0.1] * 999)] * 3, 4, 5, id="one hot replica is not hidden by the others"),
    ],
)
def test_by_queue(scaling, load, queued, loads, settled, wanted):
    made = [load(waiting=w, lacks_room=w > 0, queued=queued(*s)) for w, s in loads]
    seen = Observation(len(loads), made, settled=settled)
    assert asked(seen, scaling(), "queue") == wanted


def test_the_oldest_that_waits_counts_before_it_is_in_any_histogram(scaling, load):
    late = load(waiting=1, lacks_room=True, oldest_waiting=20.0)
    assert asked(Observation(1, [late], settled=1), scaling(), "queue") == 2


def test_a_moment_of_waiting_is_no_want_of_capacity(scaling, load):
    late = load(waiting=1, oldest_waiting=20.0)
    assert asked(Observation(1, [late], settled=1), scaling(), "queue") == 0


@pytest.mark.parametrize(
    ("desired", "demand", "backlog", "rate", "wanted"),
    [
        pytest.param(1, 500, 0, None, 0, id="no replica was full yet: nothing is known"),
        pytest.param(1, 500, 0, 100, 7, id="demand over 0.8 of a full replica's rate"),
        pytest.param(8, 450, 0, 100, 7, id="less is enough"),
        pytest.param(8, 540, 0, 100, 8, id="seven would be full again with the next fluctuation"),
        pytest.param(7, 540, 0, 100, 7, id="within the tolerance"),
        pytest.param(1, 500, 4500, 100, 9, id="what has piled up is to be done within a window"),
    ],
)
def test_by_prompt(scaling, load, desired, demand, backlog, rate, wanted):
    seen = Observation(desired, [load(demand=demand, backlog=backlog)], rate=rate)
    assert asked(seen, scaling(), "prompt") == wanted
