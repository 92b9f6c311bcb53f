"""Loading, draining, dying: what probes and clients see, and exit codes."""

from __future__ import annotations

import asyncio
import concurrent.futures as futures
import contextlib
import gc
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from pagetide_server.api.server import EXIT_HTTP, Server
from pagetide_server.api.sockets import listen
from pagetide_server.process.client import EXIT_SECONDS
from pagetide_server.text.tokenizer import Tokenizer
from pagetide_server.wire.launch import EXIT_ENGINE, EXIT_START
from pagetide_spec.config import EngineConfig
from pagetide_spec.names import EXIT_SETTING

# Of fake_core.py.
SLOW, RAISE, DIE, LONG_STEP = 380, 382, 383, 384
HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"
PROBES = ("/livez", "/readyz", "/health")


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def stream(server, **body):
    """A stream's text, read to its end; an error that cuts the connection is part of it."""
    text = ""
    request = {"prompt": "The old", "max_tokens": 40, "stream": True, **body}
    with httpx.stream("POST", server.url + "/v1/completions", json=request, timeout=30, trust_env=False) as answer:
        assert answer.status_code == 200, answer.read()
        for part in answer.iter_text():
            text += part
    return text


@pytest.fixture
def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_a_loading_server_is_alive_but_not_ready(launch, wait, free_port):
    with launch(f"--port={free_port}", ready=False, FAKE_LOAD_S="3") as server:
        server.url = f"http://127.0.0.1:{free_port}"
        wait(lambda: server.status("/livez") == 200)
        assert [server.status(p) for p in PROBES] == [200, 503, 503]
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
            answer = httpx.post(server.url + path, json={"prompt": "x"}, trust_env=False)
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "service_unavailable_error")
        assert server.status("/v1/models") == 503
        assert server.status("/metrics") == 200
        said = re.compile(r"the model is still loading: weights \d+%")
        wait(lambda: said.fullmatch(httpx.get(server.url + "/readyz", trust_env=False).text))
        wait(lambda: server.status("/readyz") == 200)
        assert server.status("/v1/models") == 200
        assert server.stop() == 0
    log = server.log.read_text()
    assert "loading: weights" in log
    assert "POST /tokenize 503" in log
    assert not any(path in log for path in (*PROBES, "/metrics"))


@pytest.mark.parametrize("slow", ["FAKE_LOAD_S", "FAKE_TOKENIZER_S"], ids=["the model", "the tokenizer"])
def test_sigterm_while_loading_ends_at_once(launch, wait, free_port, slow):
    with launch(f"--port={free_port}", ready=False, **{slow: "30"}) as server:
        server.url = f"http://127.0.0.1:{free_port}"
        wait(lambda: server.status("/livez") == 200)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 10


def test_sigterm_lets_streams_finish_and_takes_no_more(launch, wait):
    with launch(FAKE_STEP_S="0.05") as server, futures.ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(stream, server) for _ in range(4)]
        wait(lambda: server.metric("pagetide_requests_running") == 4)
        engine = server.engine_pid
        server.process.send_signal(signal.SIGTERM)
        assert wait(lambda: server.status("/readyz") == 503, 2) < 1
        assert [server.status(p) for p in PROBES] == [200, 503, 503]
        late = httpx.post(server.url + "/v1/completions", json={"prompt": "x"}, trust_env=False)
        assert late.status_code == 503
        assert "retry-after" in late.headers
        for job in jobs:
            text = job.result(20)
            assert text.endswith("data: [DONE]\n\n")
            assert text.count('"finish_reason":"length"') == 1
        assert server.process.wait(10) == 0
        assert not alive(engine)
    log = server.log.read_text()
    assert "POST /v1/completions 503" in log
    assert not any(path in log for path in PROBES)


def test_sigterm_under_load_loses_no_stream_that_has_begun(launch, wait):
    """Forty clients ask again and again, whatever the signal's moment finds them at."""
    begun, answered = [], []

    def client(server, number):
        with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as http:
            while True:
                body = {"prompt": f"The old {number}", "max_tokens": 20, "ignore_eos": True, "stream": True}
                try:
                    with http.stream("POST", "/v1/completions", json=body) as response:
                        if response.status_code != 200:
                            return response.status_code
                        begun.append(number)
                        text = response.read().decode()
                except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError):
                    return "gone"
                assert text.endswith("data: [DONE]\n\n"), text[-300:]
                assert text.count('"finish_reason":"length"') == 1
                answered.append(number)

    with launch(FAKE_STEP_S="0.02") as server, futures.ThreadPoolExecutor(40) as pool:
        jobs = [pool.submit(client, server, number) for number in range(40)]
        wait(lambda: len(answered) > 60)
        assert server.stop() == 0
        assert {job.result(20) for job in jobs} <= {503, "gone"}
    assert len(begun) == len(answered)


@pytest.mark.parametrize(
    ("second", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["second SIGTERM", "Ctrl-C after SIGTERM"]
)
def test_a_second_signal_cuts_streams_with_an_error(launch, wait, second, code):
    with launch(FAKE_STEP_S="0.1") as server, futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(stream, server, max_tokens=400)
        wait(lambda: server.metric("pagetide_requests_running") == 1)
        server.process.send_signal(signal.SIGTERM)
        wait(lambda: server.status("/readyz") == 503)
        began = time.monotonic()
        assert server.stop(second) == code
        assert time.monotonic() - began < 5
        assert "shutting down" in job.result(5)
    assert "cutting 1 requests: a second signal came" in server.log.read_text()


def test_a_second_signal_does_not_wait_for_a_long_step(launch, wait):
    with launch() as server, futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(server.post, "/v1/completions", prompt=[LONG_STEP, 300], max_tokens=5)
        # Until its first step is over, it waits.
        wait(lambda: server.metric("pagetide_requests_waiting") == 1)
        server.process.send_signal(signal.SIGTERM)
        wait(lambda: server.status("/readyz") == 503)
        began = time.monotonic()
        assert server.stop() == 143
        assert time.monotonic() - began < 4
        assert job.result(20).status_code == 503


def test_a_second_signal_that_cuts_nothing_is_a_usual_end(launch):
    with launch() as server:
        # Both are there when it looks.
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            server.process.send_signal(number)
        assert server.process.wait(20) == 0


def test_a_drain_has_an_end(launch, wait):
    with launch("--shutdown-timeout-s=1", FAKE_STEP_S="0.1") as server, futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(stream, server, max_tokens=400)
        wait(lambda: server.metric("pagetide_requests_running") == 1)
        assert server.stop() == 0
        text = job.result(5)
        assert "shutting down" in text
        assert '"finish_reason":"' not in text
    assert "cutting 1 requests: they took longer than 1 s (--shutdown-timeout-s)" in server.log.read_text()


def test_a_drain_that_a_stuck_engine_keeps_from_ending_has_a_code_and_says_why(launch, wait):
    # Long enough for its silence to be told from a long step's.
    with launch("--shutdown-timeout-s=7", FAKE_STEP_S="0.1") as server, futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(stream, server, max_tokens=400)
        wait(lambda: server.metric("pagetide_requests_running") == 1)
        os.kill(server.engine_pid, signal.SIGSTOP)
        began = time.monotonic()
        assert server.stop() == EXIT_ENGINE
        # Not what the engine gets to end its step.
        assert time.monotonic() - began < 7 + EXIT_SECONDS
        assert "shutting down" in job.result(5)
    said = r" ERROR pagetide cutting 1 requests: the engine process has given no sign of life for \d+ s\n"
    assert re.search(said, server.log.read_text())


def test_ctrl_c_to_the_whole_group_drains_too(launch, wait):
    with launch(FAKE_STEP_S="0.05") as server, futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(stream, server, max_tokens=30)
        wait(lambda: server.metric("pagetide_requests_running") == 1)
        os.killpg(server.process.pid, signal.SIGINT)
        assert '"finish_reason":"length"' in job.result(10)
        assert server.process.wait(10) == 0


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        pytest.param(DIE, "killed by signal 9", id="the engine is killed"),
        pytest.param(RAISE, "a kernel failed", id="a step raises"),
    ],
)
def test_a_dead_engine_ends_streams_with_an_error_and_the_server_with_a_code(launch, fault, said):
    with launch() as server:
        engine = server.engine_pid
        with futures.ThreadPoolExecutor(2) as pool:
            whole = pool.submit(server.post, "/v1/completions", prompt=[SLOW], max_tokens=400)
            text = stream(server, prompt=[fault], max_tokens=400)
            assert whole.result(10).status_code == 503
        assert said in text
        assert text.endswith("data: [DONE]\n\n")
        assert '"finish_reason":"' not in text
        assert server.process.wait(10) == 4
        assert not alive(engine)
        assert said in server.log.read_text()


def test_a_stopped_engine_is_seen_within_ten_seconds(launch, wait):
    with launch() as server:
        assert server.status("/livez") == 200
        os.kill(server.engine_pid, signal.SIGSTOP)
        assert wait(lambda: server.status("/livez") == 503, 10) > 1
        assert server.status("/readyz") == 503
        answer = server.post("/v1/completions", prompt="x")
        assert answer.status_code == 503
        assert "no sign of life" in answer.json()["error"]["message"]
        os.kill(server.engine_pid, signal.SIGCONT)
        wait(lambda: server.status("/livez") == 200)
        assert server.complete(prompt="x", max_tokens=1)
    log = server.log.read_text()
    assert "GET /livez 503" in log
    assert "GET /livez 200" not in log


@pytest.mark.slow
def test_a_long_step_is_no_hang(launch):
    # It takes longer than a silence of heartbeats may.
    with launch() as server, futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(server.post, "/v1/completions", prompt=[LONG_STEP], max_tokens=2)
        seen = set()
        while not job.done():
            seen |= {server.status(p) for p in PROBES}
        assert seen == {200}
        assert job.result().status_code == 200


def test_the_engine_dies_with_a_killed_server(launch, wait):
    with launch() as server:
        engine = server.engine_pid
        server.process.kill()
        wait(lambda: not alive(engine), 5)


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        pytest.param("setting", 2, "max_model_len", id="a setting that the model does not allow"),
        pytest.param("model", 3, "the weights are damaged", id="a model that cannot be loaded"),
        pytest.param("crash", 4, "ended with exit code 7", id="an engine that vanishes"),
    ],
)
def test_a_failed_start_says_why(launch, fault, code, said):
    # A tokenizer that is still being fetched holds up nobody.
    with launch(ready=False, FAKE_LOAD_ERROR=fault, FAKE_TOKENIZER_S="60") as server:
        assert server.process.wait(20) == code
    lines = [line for line in server.log.read_text().splitlines() if line.startswith("pagetide serve: ")]
    assert len(lines) == 1
    assert said in lines[0]


def test_a_signal_while_loading_gives_the_terminal_its_cursor_back(tiny_model, wait):
    ours, theirs = pty.openpty()
    env = {**os.environ, "FAKE_LOAD_S": "30", "TERM": "xterm"}
    command = [sys.executable, str(Path(__file__).parent / "fake_server.py"), str(tiny_model), "--port=0"]
    shown = b""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=env) as process:
        os.close(theirs)
        while b"weights" not in shown:
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(OSError):  # how a terminal without a process reads
            while part := os.read(ours, 4096):
                shown += part
    os.close(ours)
    assert process.returncode == 0
    assert shown.rfind(HIDE_CURSOR) < shown.rfind(SHOW_CURSOR)


@pytest.mark.parametrize(
    ("streams", "warned"),
    [
        pytest.param(">/dev/full", ["No space left on device"], id="a full disk"),
        pytest.param("<&- >&-", [], id="closed"),
    ],
)
def test_streams_that_take_nothing_keep_no_server_from_serving(tiny_model, tmp_path, wait, free_port, streams, warned):
    fake = str(Path(__file__).parent / "fake_server.py")
    server = [sys.executable, fake, str(tiny_model), "--host=127.0.0.1", f"--port={free_port}"]
    url, log = f"http://127.0.0.1:{free_port}", tmp_path / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(["sh", "-c", f'exec "$@" {streams}', "sh", *server], stderr=stderr)

    def is_ready():
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{url}/readyz", trust_env=False).status_code == 200

    try:
        wait(is_ready, 20)
        assert httpx.post(f"{url}/v1/completions", json={"prompt": "x"}, trust_env=False).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
    said = re.findall(rf" WARNING pagetide stdout cannot be written: (.*); serving \S+ at {url}\n", log.read_text())
    assert said == warned


async def test_a_server_whose_http_side_ends_does_not_live_on(tiny_model, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    config = EngineConfig(model=str(tiny_model))
    server = Server(config, [], "fake_core:create", lambda config: Tokenizer.from_folder(Path(config.model)))

    async def serve(http, sockets):
        while server._context.prompter is None:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.01)

    monkeypatch.setattr("pagetide_server.api.server._Uvicorn.serve", serve)
    async with asyncio.timeout(20):
        with listen("127.0.0.1", 0) as listener:
            assert await server.run(listener) == 1
        gc.unfreeze()  # what it froze for the rest of its process, which is this one


def run(*arguments, **env):
    return subprocess.run(
        [sys.executable, "-m", "pagetide_server", *arguments],
        capture_output=True, text=True, timeout=30, env={**os.environ, **env},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "env", "named"),
    [
        pytest.param([], {}, "MODEL", id="no model"),
        pytest.param(["/no/such/folder"], {}, "/no/such/folder", id="a path without a model"),
        pytest.param(["~/no/such/folder"], {}, "~/no/such/folder", id="a path without a model, at home"),
        pytest.param(["mymodel"], {}, "MODEL", id="a name that is neither a path nor a hub id"),
        pytest.param([__file__], {}, "no GGUF file", id="a file of another kind"),
        pytest.param(["org/m", "--max-num-seqs=many"], {}, "--max-num-seqs", id="a text for a number"),
        pytest.param(["org/m", "--max-num-seqs=0"], {}, "--max-num-seqs", id="a number out of range"),
        pytest.param(["org/m"], {"PAGETIDE_MAX_NUM_SEQS": "-3"}, "PAGETIDE_MAX_NUM_SEQS", id="a wrong variable"),
        pytest.param(["org/m", "--api-key= , "], {}, "api_key", id="keys that are none"),
        pytest.param(["org/m", "--api-key-file=/no/keys"], {}, "api_key_file", id="a file of keys that is missing"),
        pytest.param(["org/m", "--host=300.1.1.1"], {}, "300.1.1.1", id="an address that does not exist"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(arguments, env, named):
    found = run(*arguments, **env)
    assert found.returncode == 2
    (line,) = found.stderr.splitlines()
    assert named in line
    assert line.startswith("pagetide serve: ")


def test_a_taken_port_is_told_before_anything_loads():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        found = run("org/m", "--host=127.0.0.1", f"--port={taken.getsockname()[1]}")
    assert found.returncode == 2
    assert address in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_a_wrong_setting_is_told_before_the_http_side_is_imported():
    command = [sys.executable, "-X", "importtime", "-m", "pagetide_server", "org/m", "--max-num-seqs=0"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert found.returncode == 2
    imported = [line.rpartition("|")[2].strip() for line in found.stderr.splitlines()]
    assert "pagetide_server.serve" in imported
    assert not {"fastapi", "starlette", "uvicorn", "torch"} & set(imported)


def test_help_groups_flags_and_shows_defaults():
    found = run("--help")
    assert found.returncode == 0
    for text in ("scheduling:", "memory:", "--max-num-seqs", "(default: 16)", "PAGETIDE_", "exit codes"):
        assert text in found.stdout
    for code in (0, EXIT_HTTP, EXIT_SETTING, EXIT_START, EXIT_ENGINE, 130):
        assert f"\n  {code:<3}  " in found.stdout


def test_the_engine_can_be_told_from_the_server_in_a_list_of_processes(server):
    assert Path(f"/proc/{server.engine_pid}/comm").read_text() == "pagetide-engine\n"
