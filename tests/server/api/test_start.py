"""Until a server serves: what probes see, what a failed start says, and exit codes."""

from __future__ import annotations

import contextlib
import dataclasses
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

from pagetide_server.api.server import EXIT_HTTP
from pagetide_server.vllm_flags import VLLM_FLAGS
from pagetide_server.wire.launch import EXIT_ENGINE, EXIT_START
from pagetide_spec.config import EngineConfig
from pagetide_spec.flags import flag_of
from pagetide_spec.names import EXIT_SETTING

HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"
PROBES = ("/livez", "/readyz", "/health")


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


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        pytest.param("setting", 2, ": --max-model-len: 64: must be", id="a setting that the model does not allow"),
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
        pytest.param(["org/m", "--api-key= , "], {}, "--api-key: ", id="keys that are none"),
        pytest.param(["org/m", "--api-key-file=/no/keys"], {}, "--api-key-file: ", id="a file of keys that is missing"),
        pytest.param(["--model", "org/m"], {}, "argument: pagetide serve MODEL", id="the model as a flag"),
        pytest.param(["org/m", "--device", "cuda"], {}, "--device: no such flag; not needed", id="a flag of vLLM"),
        pytest.param(["org/m", "--tool-call-parser=xlam"], {}, "; leave it out, and it", id="a parser of vLLM"),
        pytest.param(["org/m", "--host=300.1.1.1"], {}, "300.1.1.1", id="an address that does not exist"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(arguments, env, named):
    found = run(*arguments, **env)
    assert found.returncode == 2
    (line,) = found.stderr.splitlines()
    assert named in line
    assert line.startswith("pagetide serve: ")


def test_only_flags_that_do_not_exist_have_a_hint_of_their_own():
    fields = {field.name for field in dataclasses.fields(EngineConfig)} - {"model"}
    assert not VLLM_FLAGS.keys() & {flag_of(name) for name in fields}


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
