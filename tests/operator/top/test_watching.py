"""`pagetide top` as a program: whom it can watch, in one shot and live, and what it says where it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

import pytest
from aiohttp import web

from pagetide_operator.top import main as command

from .answers import BEGIN, SUMMARY, later

# Read from KUBECONFIG when the client is imported.
DEFAULT_KUBECONFIG = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"


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
