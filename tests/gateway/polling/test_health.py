"""What polls of a replica mean for its health, as tables."""

from __future__ import annotations

import logging

import pytest

from pagetide_gateway.polling.health import MISSES_ALLOWED, MISSES_LOST, HealthPoller, Poll, cards_in, is_lost, judge
from pagetide_gateway.replicas.registry import Health, Registry

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


GONE = Poll("refused", "connection refused")


@pytest.mark.parametrize(
    ("polls", "expected"),
    [
        pytest.param([GONE] * 5, ["WARNING not ready: connection refused"], id="nobody there, said once"),
        pytest.param([Poll("timeout")] * MISSES_ALLOWED, [], id="late at the begin: nothing is known yet"),
        pytest.param([Poll("ready")] * 3, ["INFO ready"], id="ready from the begin"),
        pytest.param(
            [Poll("ready"), Poll("unready", "loading"), GONE, Poll("timeout"), Poll("ready"), Poll("ready")],
            ["INFO ready", "WARNING not ready: loading", "INFO ready"],
            id="away and back: one line a change",
        ),
    ],
)
def test_what_is_logged_of_a_replica(polls, expected, caplog):
    caplog.set_level(logging.INFO)
    poller, service, replica = a_replica()
    for poll in polls:
        poller._note(service, replica, poll)
    prefix = "m: m-0 (http://a:1) is "
    assert [f"{r.levelname} {r.getMessage().removeprefix(prefix)}" for r in caplog.records] == expected


def test_what_a_request_found_out_first_is_logged_too(caplog):
    poller, service, replica = a_replica()
    poller._note(service, replica, Poll("ready"))
    replica.health = Health(reason="the connection was closed")
    poller._note(service, replica, GONE)
    assert [r.levelname for r in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("expected", [{"draining": ["m-0"]}, {"unready": ["m-0"]}], ids=["drains", "its pod is not"])
def test_a_replica_that_need_not_be_ready_is_no_warning(expected, caplog):
    caplog.set_level(logging.INFO)
    poller, service, replica = a_replica(**expected)
    poller._note(service, replica, GONE)
    assert [r.levelname for r in caplog.records] == ["INFO"]


def a_replica(**options):
    registry = Registry()
    service = registry.put("m", {"m-0": "http://a:1"}, **options)
    return HealthPoller(registry, None), service, service.replicas["m-0"]


async def test_somebody_elses_answer_is_not_repeated(start_gateway, start_replicas, until):
    (replica,) = await start_replicas(1)
    replica.ready = 404
    front = await start_gateway(replica)
    found = front.registry.find("m").replicas["m-0"]
    await until(lambda: found.health.reason != "starting")
    async with front.post({"model": "m", "prompt": "x"}) as response:
        assert response.status == 503
        message = (await response.json())["error"]["message"]
    assert "m-0 not ready (/readyz says 404; is this a server of Pagetide?)" in message


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
