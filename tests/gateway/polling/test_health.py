"""What polls of a replica mean for its health, as tables."""

from __future__ import annotations

import pytest

from pagetide_gateway.polling.health import MISSES_ALLOWED, MISSES_LOST, Poll, cards_in, is_lost, judge
from pagetide_gateway.replicas.registry import Health

READY = Health(ready=True, reason="")


@pytest.mark.parametrize(
    ("health", "polls", "is_ready"),
    [
        pytest.param(Health(), [Poll("ready")], True, id="a 200 makes it ready"),
        pytest.param(READY, [Poll("unready", "503")], False, id="a 503 counts at once"),
        pytest.param(READY, [Poll("refused", "refused")], False, id="a refused connection counts at once"),
        pytest.param(READY, [Poll("timeout")] * MISSES_ALLOWED, True, id="a few late answers are forgiven"),
        pytest.param(READY, [Poll("timeout")] * (MISSES_ALLOWED + 1), False, id="many late answers are not"),
        pytest.param(
            READY,
            [*[Poll("timeout")] * MISSES_ALLOWED, Poll("ready"), Poll("timeout")],
            True,
            id="a good answer forgives the late ones before it",
        ),
        pytest.param(Health(), [Poll("timeout")], False, id="a replica that never answered stays unready"),
    ],
)
def test_judge(health, polls, is_ready):
    for poll in polls:
        health = judge(health, poll)
    assert health.ready == is_ready
    assert bool(health.reason) != is_ready


@pytest.mark.parametrize(
    ("health", "poll", "expected"),
    [
        pytest.param(Health(misses=MISSES_LOST), Poll("timeout"), True, id="silent for long"),
        pytest.param(Health(misses=MISSES_LOST - 1), Poll("timeout"), False, id="silent for a while"),
        pytest.param(Health(misses=MISSES_LOST), Poll("unreachable", "no route"), True, id="its machine is gone"),
        pytest.param(Health(misses=1), Poll("unreachable", "no route"), False, id="its machine is away for a moment"),
        pytest.param(Health(misses=99), Poll("unknown", "no DNS"), False, id="it was not asked"),
        pytest.param(Health(), Poll("refused", "refused"), False, id="its machine is there and says no"),
        pytest.param(Health(), Poll("unready", "draining"), False, id="it drains, and ends its streams"),
        pytest.param(READY, Poll("ready"), False, id="all is well"),
    ],
)
def test_is_lost(health, poll, expected):
    assert is_lost(health, poll) == expected


def test_polls_that_fail_here_give_up_no_request():
    """However often: the streams of a replica that was not asked go on."""
    health = READY
    for _ in range(3 * MISSES_LOST):
        health = judge(health, poll := Poll("unknown", "Too many open files"))
        assert not is_lost(health, poll)
    assert not health.ready
    assert not is_lost(judge(health, Poll("timeout")), Poll("timeout")), "these were no silences"


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        pytest.param(b'{"data": [{"id": "a"}, {"id": "b"}]}', ["a", "b"], id="a list of models"),
        pytest.param(b'{"data": [3, {"name": "x"}]}', [], id="entries of another form"),
        pytest.param(b'{"data": null}', [], id="no list"),
        pytest.param(b"[]", [], id="no object"),
        pytest.param(b"<html>", [], id="no JSON"),
    ],
)
def test_cards_in(body, ids):
    assert list(cards_in(body)) == ids
