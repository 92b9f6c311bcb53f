"""What `pagetide top` makes of two looks at a server or a gateway, and how it tells that."""

from __future__ import annotations

import pytest
from rich.console import Console

from pagetide_operator.top.cluster import service_line, waits_for
from pagetide_operator.top.exposition import Change, look
from pagetide_operator.top.frame import Frame, Row, row_of
from pagetide_operator.top.numbers import fullness, rate, seconds
from pagetide_operator.top.screen import Screen
from pagetide_operator.top.sources import History, gateway_frame

from .answers import BEGIN, SUMMARY, later


@pytest.fixture
def change():
    after = later(generation_tokens_total=300, prefix_cache_query_tokens_total=200, prefix_cache_hit_tokens_total=75,
                  requests_waiting=4, preemptions_total=5)  # fmt: skip
    after = after.replace('bucket{le="1.0",model_name="m"} 1', 'bucket{le="1.0",model_name="m"} 5')
    after = after.replace('bucket{le="+Inf",model_name="m"} 1', 'bucket{le="+Inf",model_name="m"} 5')
    return Change(look(BEGIN, 100.0), look(after, 110.0))


def test_rates_and_quantiles_are_of_what_happened_in_between(change):
    row = row_of("s", "r", "ready", change)
    assert row == Row("s", "r", "ready", running=1, waiting=4, batch=0.2, kv=0.1, hits=0.75, tokens=20.0, queue=None,
                      first_token=pytest.approx(0.975))  # fmt: skip
    assert change.rate("preemptions_total") == 1.0  # both modes
    assert change.rate("requests_total", "abort") == 0


def test_a_first_look_has_no_rates():
    only = History().add(look(BEGIN, 5.0))
    row = row_of("s", "r", "ready", only)
    assert (row.tokens, row.first_token, row.running) == (None, None, 1)


def test_a_server_that_began_anew_is_not_measured_against_what_it_was():
    history = History()
    history.add(look(BEGIN, 0.0))
    again = history.add(look(later(engine_steps_total=2, generation_tokens_total=7), 2.0))
    assert again.rate("generation_tokens_total") is None


def test_the_window_moves():
    history = History()
    changes = [history.add(look(BEGIN, float(at))) for at in range(0, 100, 5)]
    assert changes[-1].seconds == 30


@pytest.mark.parametrize("text", ["", "up 1\n", "<html>", "pagetide_gateway_requests_held 1\n"])
def test_what_is_no_server_is_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        look(text, 0.0)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.0123, "12 ms"), (1.25, "1.25 s")], ids=["not told", "short", "long"]
)
def test_how_times_are_told(value, text):
    assert seconds(value) == text


def test_how_numbers_are_told():
    assert [rate(v) for v in (None, 0.44, 1250.0)] == ["–", "0.4", "1,250"]
    assert [fullness(v).style for v in (None, 0.5, 0.85, 0.99)] == ["", "", "yellow", "red"]


def drawn(frame):
    console = Console(width=160, record=True, force_terminal=False)
    with console.capture() as capture:
        console.print(Screen(frame))
    return capture.get()


def test_a_servers_screen(change):
    text = drawn(Frame("server http://x", [row_of("", "x", "ready", change)], detail=change))
    for expected in ("tokens/s", "20.0", "75 %", "preemptions", "975 ms", "GPU", "50 %, memory 50 %", "abort"):
        assert expected in text, text


def test_a_gateways_screen():
    now = {**SUMMARY, "time": 102.0, "services": [dict(s) for s in SUMMARY["services"]]}
    first = {**SUMMARY["services"][0]["replicas"][0], "generatedTokens": 150.0, "queryTokens": 20.0, "hitTokens": 5.0}
    now["services"][0]["replicas"] = [first, SUMMARY["services"][0]["replicas"][1]]
    frame = gateway_frame("gateway", now, SUMMARY)
    assert frame.rows == [
        Row("a", "a-0", "ready", running=2.0, waiting=1.0, batch=0.5, kv=0.5, hits=0.5, tokens=25.0),
        Row("a", "a-1", "unready: loading"),
    ]
    assert frame.services == ["a: 1 of 2 ready, 3 in flight, 2 held", "asleep: 0 of 0 ready, 0 in flight"]
    assert "unready: loading" in drawn(frame)
    assert gateway_frame("gateway", SUMMARY, None).rows[0].tokens is None


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        pytest.param({"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
                     "ImagePullBackOff", id="its container's word"),
        pytest.param({"phase": "Pending", "conditions": [{"status": "False", "reason": "Unschedulable"}]},
                     "Unschedulable", id="its condition's"),
        pytest.param({"phase": "Pending"}, "Pending", id="its phase"),
        pytest.param({}, "Pending", id="nothing yet"),
    ],
)  # fmt: skip
def test_why_a_pod_is_not_ready(status, reason):
    assert waits_for({"status": status}) == reason


def test_a_service_in_one_line(service):
    status = {"readyReplicas": 1, "desiredReplicas": 2, "conditions": [{"type": "Ready", "reason": "Starting"}]}
    assert service_line(service(status=status)) == "ns/llm: 1 of 2 ready, Starting"
    assert service_line(service()) == "ns/llm: 0 of ? ready, not looked at yet"
