"""Decisions of the gateway as tables."""

from __future__ import annotations

import errno
import re
import socket
from pathlib import Path

import pytest
from aiohttp import ClientConnectorDNSError, ClientConnectorError, ClientOSError, ServerDisconnectedError
from aiohttp.client_reqrep import ConnectionKey

from pagetide_gateway.main import main
from pagetide_gateway.options import registry_of
from pagetide_gateway.polling.health import MISSES_ALLOWED, MISSES_LOST, Poll, cards_in, is_lost, judge
from pagetide_gateway.proxy.relay import whole_events
from pagetide_gateway.replicas.registry import Health, Registry
from pagetide_gateway.replicas.upstream import fault_of
from pagetide_spec.errors import SettingError
from pagetide_spec.metrics import GATEWAY_METRICS

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


KEY = ConnectionKey("h", 80, False, True, None, None, None)


def failed_to_connect(number: int) -> ClientConnectorError:
    return ClientConnectorError(KEY, OSError(number, "x"))


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        pytest.param(failed_to_connect(errno.ECONNREFUSED), "process", id="refused"),
        pytest.param(ServerDisconnectedError(), "process", id="closed"),
        pytest.param(ClientOSError(errno.ECONNRESET, "x"), "process", id="reset"),
        pytest.param(failed_to_connect(errno.EHOSTUNREACH), "machine", id="no such machine"),
        pytest.param(failed_to_connect(errno.ETIMEDOUT), "machine", id="silence"),
        pytest.param(failed_to_connect(errno.EMFILE), "ours", id="too many open files"),
        pytest.param(failed_to_connect(errno.EADDRNOTAVAIL), "ours", id="no free port"),
        pytest.param(failed_to_connect(errno.ENETUNREACH), "ours", id="no network"),
        pytest.param(ClientConnectorDNSError(KEY, socket.gaierror(-3, "try again")), "ours", id="no DNS"),
    ],
)
def test_fault_of(error, fault):
    assert fault_of(error) == fault


def test_polls_that_fail_here_give_up_no_request():
    """However often: the streams of a replica that was not asked go on."""
    health = READY
    for _ in range(3 * MISSES_LOST):
        health = judge(health, poll := Poll("unknown", "Too many open files"))
        assert not is_lost(health, poll)
    assert not health.ready
    assert not is_lost(judge(health, Poll("timeout")), Poll("timeout")), "these were no silences"


def test_put_keeps_what_is_known_of_those_that_stay():
    registry = Registry()
    registry.put("m", {"a": "http://1", "b": "http://2"})
    kept, moved = registry.find("m").replicas.values()
    kept.health = moved.health = READY
    registry.put("m", {"a": "http://1/", "b": "http://3", "c": "http://4"})
    now = registry.find("m").replicas
    assert now["a"] is kept
    assert not now["b"].health.ready, "another address is another process"
    assert registry.find("m").available() == [kept]


def test_a_long_name_always_means_its_own_service():
    registry = Registry()
    ours = registry.put("team-a/m", {"p": "http://1"}, served="m")
    theirs = registry.put("team-b/x", {"q": "http://2"}, served="team-a/m")
    assert registry.find("team-a/m") is ours
    assert registry.find("team-b/x") is theirs
    assert sorted(registry.models()) == ["m", "team-b/x"]


def test_one_that_is_gone_is_looked_after_as_long_as_it_has_requests():
    registry = Registry()
    (gone,) = registry.put("m", {"a": "http://1"}).replicas.values()
    gone.in_flight = 1
    registry.put("m", {"b": "http://2"})
    assert {r.name for _, r in registry.replicas()} == {"a", "b"}
    assert not gone.is_available
    (b,) = registry.find("m").replicas.values()
    b.in_flight = 1
    registry.remove("m")
    assert {r.name for _, r in registry.replicas()} == {"a", "b"}
    gone.in_flight = b.in_flight = 0
    assert not list(registry.replicas())


def test_a_service_that_gets_another_model_is_another_service():
    registry = Registry()

    async def wake():
        raise AssertionError("nobody asks")

    before = registry.put("ns/a", {"p": "http://1"}, served="old", wake=wake)
    after = registry.put("ns/a", {"p": "http://1"}, served="new", wake=wake)
    assert registry.find("old") is None
    assert registry.find("new") is after is not before
    assert before.wake is None, "those who wait for the old model are told"


def test_draining_replicas_are_not_available():
    registry = Registry()
    service = registry.put("m", {"a": "http://1"})
    service.replicas["a"].health = READY
    service.replicas["a"].draining = True
    assert service.available() == []


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


@pytest.mark.parametrize(
    "text",
    ["m", "m=", "=http://a", "m=a:80", "m=https://a", "m=http://", "m=http://a:x", "m=http://a,ftp://b"],
)
def test_a_wrong_service_flag_is_named(text, capsys):
    assert main(["--service", text, "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--service" in error
    assert text in error


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        pytest.param("--port", "99999", id="no such port"),
        pytest.param("--host", "a" * 70 + ".example", id="a label of a name that is too long"),
        pytest.param("--host", "256.1.1.1", id="no such address"),
    ],
)
def test_where_it_cannot_listen_is_named(flag, value, capsys):
    assert main([flag, value]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{flag}: " in error
    assert value in error


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "soon"])
def test_a_drain_takes_a_number_of_seconds(value, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([f"--drain-seconds={value}"])
    assert f"--drain-seconds: '{value}': must be a number of seconds" in capsys.readouterr().err


def test_a_stall_is_at_least_a_second(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--stall-seconds=0.001"])
    assert "--stall-seconds: '0.001': must be at least 1" in capsys.readouterr().err


class Content:
    """A body in given pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    async def readany(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


async def test_what_never_ends_an_event_is_not_held_for_ever():
    piece = b"x" * (1 << 18)
    passed = [p async for p in whole_events(Content(*[piece] * 9))]
    assert b"".join(passed) == piece * 9
    assert max(map(len, passed)) <= (1 << 20) + len(piece)


@pytest.mark.parametrize(("size"), [1, 2, 3, 5, 100])
async def test_events_are_cut_behind_their_ends_however_they_come(size):
    whole = b"data: 1\n\ndata: 2\r\n\r\n: ping\n\ndata: rest"
    pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
    passed = [p async for p in whole_events(Content(*pieces))]
    assert b"".join(passed) == whole
    assert all(p.endswith((b"\n\n", b"\n\r\n")) for p in passed[:-1])


def test_the_documented_metrics_are_those_there_are():
    text = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()
    documented = re.findall(r"`(pagetide_gateway_\w+)(?:\{(\w+)\})?`", text)
    assert documented == [(m.full_name, ",".join(m.labels)) for m in GATEWAY_METRICS.values()]


def test_service_flags_become_replicas():
    registry = registry_of(["m=http://a:1,http://b:2/", "org/n=http://c"])
    assert {m: [r.url for r in s.replicas.values()] for m, s in registry.services.items()} == {
        "m": ["http://a:1", "http://b:2"],
        "org/n": ["http://c"],
    }
    with pytest.raises(SettingError, match="twice"):
        registry_of(["m=http://a", "m=http://b"])
