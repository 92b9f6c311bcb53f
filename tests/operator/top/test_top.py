"""`pagetide top`: what follows from two scrapes, how it is drawn, and whom it can watch."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

import pytest
from aiohttp import web
from rich.console import Console

from pagetide_operator.top import main as command
from pagetide_operator.top.cluster import service_line, waits_for
from pagetide_operator.top.exposition import Change, look
from pagetide_operator.top.frame import Frame, Row, row_of
from pagetide_operator.top.numbers import fullness, rate, seconds
from pagetide_operator.top.screen import Screen
from pagetide_operator.top.sources import History, gateway_frame

# Read from KUBECONFIG when the client is imported.
DEFAULT_KUBECONFIG = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
BEGIN = """
pagetide_requests_running{model_name="m"} 1
pagetide_requests_waiting{model_name="m"} 0
pagetide_requests_swapped{model_name="m"} 0
pagetide_kv_cache_utilization_ratio{model_name="m"} 0.1
pagetide_kv_blocks{model_name="m",state="free"} 90
pagetide_kv_blocks{model_name="m",state="used"} 10
pagetide_batch_utilization_ratio{model_name="m"} 0.2
pagetide_engine_steps_total{model_name="m"} 10
pagetide_generation_tokens_total{model_name="m"} 100
pagetide_prefix_cache_query_tokens_total{model_name="m"} 100
pagetide_prefix_cache_hit_tokens_total{model_name="m"} 0
pagetide_preemptions_total{mode="swap",model_name="m"} 0
pagetide_preemptions_total{mode="recompute",model_name="m"} 0
pagetide_requests_total{finish_reason="stop",model_name="m"} 5
pagetide_requests_total{finish_reason="abort",model_name="m"} 0
pagetide_time_to_first_token_seconds_bucket{le="0.5",model_name="m"} 1
pagetide_time_to_first_token_seconds_bucket{le="1.0",model_name="m"} 1
pagetide_time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 1
pagetide_time_to_first_token_seconds_count{model_name="m"} 1
pagetide_time_to_first_token_seconds_sum{model_name="m"} 0.2
pagetide_gpu_utilization_ratio{gpu="0",model_name="m"} 0.5
pagetide_gpu_memory_used_bytes{gpu="0",model_name="m"} 40
pagetide_gpu_memory_total_bytes{gpu="0",model_name="m"} 80
python_info{version="3"} 1
"""


def later(**values):
    """BEGIN with other values of metrics, by the beginning of their lines."""
    text = BEGIN
    for name, value in values.items():
        text, count = re.subn(rf"^(pagetide_{name}\S*) \S+$", rf"\1 {value}", text, flags=re.MULTILINE)
        assert count
    return text


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


SUMMARY = {
    "time": 100.0,
    "services": [
        {
            "key": "ns/a",
            "model": "a",
            "held": 2,
            "replicas": [
                {"name": "a-0", "state": "ready", "reason": "", "inFlight": 3, "running": 2.0, "waiting": 1.0,
                 "maxRunning": 4.0, "kvUsedRatio": 0.5, "generatedTokens": 100.0, "queryTokens": 10.0,
                 "hitTokens": 0.0},
                {"name": "a-1", "state": "unready", "reason": "loading", "inFlight": 0},
            ],
        },
        {"key": "ns/asleep", "model": "asleep", "held": 0, "replicas": []},
    ],
}  # fmt: skip


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


@pytest.fixture
async def somebody():
    """`await somebody({path: text, status or both})` -> the address of one that answers so."""
    runners = []

    async def start(answers):
        async def answer(request):
            found = answers.get(request.path, 404)
            if isinstance(found, tuple):
                return web.Response(status=found[0], text=found[1])
            return web.Response(status=found) if isinstance(found, int) else web.Response(text=found)

        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        runners.append(web.AppRunner(app))
        await runners[-1].setup()
        await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
        return "http://{}:{}".format(*runners[-1].addresses[0][:2])

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("answers", "code", "said"),
    [
        pytest.param({"/metrics": BEGIN}, 0, "server http://", id="a server"),
        pytest.param({"/metrics": BEGIN, "/readyz": (503, "loading the model\n")}, 0, "unready: loading the model",
                     id="a server that is not ready yet"),
        pytest.param(
            {"/metrics": "pagetide_gateway_requests_in_flight 1\n", "/summary": json.dumps(SUMMARY)},
            0, "a: 1 of 2 ready", id="a gateway",
        ),
        pytest.param({"/metrics": "pagetide_gateway_requests_in_flight 1\n", "/summary": 401}, 1, "--api-key",
                     id="a gateway that wants a key"),
        pytest.param({"/metrics": "pagetide_gateway_requests_in_flight 1\n", "/summary": "{}"}, 1, "not understood",
                     id="a gateway of another version"),
        pytest.param({"/metrics": "up 1\n"}, 2, "not the metrics of a Pagetide server", id="somebody else"),
        pytest.param({}, 2, "not found", id="one without metrics"),
    ],
)  # fmt: skip
async def test_whom_it_can_watch(somebody, capsys, answers, code, said):
    url = await somebody(answers)
    assert await asyncio.to_thread(command.main, [url + "/v1", "--once", "--interval=0.2"]) == code
    out, err = capsys.readouterr()
    assert said in out + err
    assert len(err.splitlines()) <= 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param([], "needs an API key: --api-key", id="none"),
        pytest.param(["--api-key=wrong"], "does not accept this API key", id="a wrong one"),
    ],
)
async def test_a_key_that_is_missing_and_one_that_is_wrong(somebody, monkeypatch, capsys, given, said):
    monkeypatch.delenv("PAGETIDE_API_KEY", raising=False)
    url = await somebody({"/metrics": "pagetide_gateway_requests_in_flight 1\n", "/summary": 401})
    assert await asyncio.to_thread(command.main, [url, "--once", *given]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["localhost:8000"], "must be http://HOST:PORT", id="no URL"),
        pytest.param(["http://127.0.0.1:99999"], "must be http://HOST:PORT", id="no such port"),
        pytest.param(["http://[::1"], "must be http://HOST:PORT", id="half an address"),
        pytest.param(["http://"], "must be http://HOST:PORT", id="no host"),
        pytest.param(["http://x", "-n", "ns"], "leave the URL out", id="both"),
        pytest.param(["--interval=0.01"], "at least 0.2", id="too often"),
    ],
)
def test_a_wrong_call_is_one_line(capsys, arguments, said):
    assert command.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_nobody_there_is_one_line(capsys, monkeypatch):
    assert command.main(["http://127.0.0.1:1", "--once"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    monkeypatch.setattr(DEFAULT_KUBECONFIG, "/nowhere")
    assert command.main(["--once"]) == 1
    assert "pagetide top URL" in capsys.readouterr().err


POD = {
    "metadata": {"name": "llm-0", "namespace": "ns", "uid": "1", "labels": {"pagetide.dev/inferenceservice": "llm"}},
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}
HANGS = {**POD, "metadata": {**POD["metadata"], "name": "llm-1", "uid": "2"}}
LOADS = {**POD, "metadata": {**POD["metadata"], "name": "llm-2", "uid": "3"}, "status": {"phase": "Pending"}}
GONE = {**POD, "metadata": {**POD["metadata"], "name": "llm-3", "uid": "4"}, "status": {"phase": "Failed"}}
PODS, SERVICES = "/api/v1/namespaces/ns/pods", "/apis/pagetide.dev/v1alpha1/namespaces/ns/inferenceservices"


async def test_a_cluster_through_its_api_server(somebody, service, tmp_path, monkeypatch, capsys):
    answers = {
        SERVICES: json.dumps({"items": [service()]}),
        PODS: json.dumps({"items": [POD, HANGS, LOADS, GONE]}),
        f"{PODS}/llm-0:8000/proxy/metrics": BEGIN,
        f"{PODS}/llm-1:8000/proxy/metrics": 503,
    }
    url = await somebody(answers)
    context = {"clusters": [{"name": "c", "cluster": {"server": url}}], "users": [{"name": "u", "user": {}}]}
    context |= {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **context}))
    monkeypatch.setattr(DEFAULT_KUBECONFIG, str(path))
    monkeypatch.setenv("COLUMNS", "160")
    assert await asyncio.to_thread(command.main, ["-n", "ns", "--once", "--interval=0.2"]) == 0
    out = capsys.readouterr().out
    assert "ns/llm: 0 of ? ready" in out
    rows = {name: line for line in out.splitlines() for name in ("llm-0", "llm-1", "llm-2", "llm-3") if name in line}
    assert "10 %" in rows["llm-0"]
    assert "no answer: HTTP status 503" in rows["llm-1"]
    assert "starting: Pending" in rows["llm-2"]
    assert "llm-3" not in rows

    answers[SERVICES] = 403
    assert await asyncio.to_thread(command.main, ["-n", "ns", "--once"]) == 1
    assert "403" in capsys.readouterr().err


async def test_it_is_live_in_a_terminal_and_ends_with_ctrl_c(somebody):
    answers = {"/metrics": BEGIN}
    url = await somebody(answers)
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pagetide_cli.main", "top", url, "--interval=0.2",
        stdin=terminal, stdout=terminal, stderr=terminal, env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(terminal)
    try:
        assert await asyncio.to_thread(seen, screen, "10 %")
        answers["/metrics"] = later(kv_cache_utilization_ratio=0.87)
        assert await asyncio.to_thread(seen, screen, "87 %")
        for away in (503, 404):
            answers["/metrics"] = away
            assert await asyncio.to_thread(seen, screen, "waiting for it")
            answers["/metrics"] = BEGIN
            assert await asyncio.to_thread(seen, screen, "10 %")
        process.send_signal(signal.SIGINT)
        await asyncio.to_thread(drain, screen)
        assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(screen)


def drain(screen, seconds=20):
    """Read until nobody writes any more: a program ends only when its last words have been taken."""
    end = time.monotonic() + seconds
    with contextlib.suppress(OSError):  # so a terminal ends
        while time.monotonic() < end:
            if select.select([screen], [], [], 0.5)[0]:
                os.read(screen, 65536)


def seen(screen, text, seconds=60):
    """Whether a text comes to be on the screen."""
    found, end = "", time.monotonic() + seconds
    while text not in found and time.monotonic() < end:
        if select.select([screen], [], [], 0.5)[0]:
            found += os.read(screen, 65536).decode("utf-8", "replace")
    return text in found
