"""Servers for the tests of the HTTP API: the real command line and both processes, with the core of `fake_core.py`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import tiny_tokenizer  # noqa: E402

START_SECONDS = 60
WINDOW = 512


@dataclasses.dataclass
class Running:
    """One server process."""

    process: subprocess.Popen[str]
    url: str
    http: httpx.Client
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def engine_pid(self) -> int:
        """The server's one child."""
        pid = self.process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def post(self, path: str, **body: object) -> httpx.Response:
        return self.http.post(path, json=body)

    def complete(self, **body: object) -> dict:
        answer = self.post("/v1/completions", **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples with these labels."""
        total = 0.0
        for line in self.http.get("/metrics").text.splitlines():
            head, _, value = line.rpartition(" ")
            if head.split("{")[0] == name and all(f'{k}="{v}"' in head for k, v in labels.items()):
                total += float(value)
        return total

    def status(self, path: str) -> int | str:
        """HTTP status, or what kept it from coming."""
        try:
            return httpx.get(self.url + path, timeout=2, trust_env=False).status_code
        except httpx.HTTPError as error:
            return type(error).__name__

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)


def wait_until(condition: Callable[[], object], seconds: float = 10, what: str = "") -> float:
    """Seconds until the condition holds; fails the test if it never does."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - began


@contextlib.contextmanager
def launched(model: Path, log: Path, *flags: str, ready: bool = True, **env: str) -> Iterator[Running]:
    """A server with these flags, killed at the end."""
    command = [sys.executable, str(HERE / "fake_server.py"), str(model), "--host=127.0.0.1", "--port=0", *flags]
    output = log.open("w")
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=output, text=True, start_new_session=True,
        # A server that is killed leaves its sockets' folder: it goes with the test's own.
        env={**os.environ, "TMPDIR": str(log.parent), **env},
    )  # fmt: skip
    try:
        running = Running(process, "", httpx.Client(), log)
        if ready:
            line = process.stdout.readline()
            line = json.loads(line)["message"] if line.startswith("{") else line
            assert line.startswith("serving "), log.read_text()
            running.url = line.split(" at ")[1].strip()
            running.http = httpx.Client(base_url=running.url, timeout=30, trust_env=False)
        yield running
        running.http.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        output.close()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer and no weights."""
    folder = tiny_tokenizer.build(tmp_path_factory.mktemp("model") / "tiny")
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture(scope="session")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for all tests that leave it as it was."""
    log = tmp_path_factory.mktemp("log") / "server.log"
    with launched(tiny_model, log, f"--max-model-len={WINDOW}", "--header-timeout-s=2", FAKE_STEP_S="0.001") as running:
        yield running


@pytest.fixture
def launch(tiny_model: Path, tmp_path: Path) -> Callable[..., contextlib.AbstractContextManager[Running]]:
    """Starts servers of a test's own."""

    def start(*flags: str, **options: object) -> contextlib.AbstractContextManager[Running]:
        return launched(tiny_model, tmp_path / "server.log", *flags, **options)

    return start


@pytest.fixture(scope="session")
def launcher() -> Callable[..., contextlib.AbstractContextManager[Running]]:
    """`launched`, for fixtures of test modules."""
    return launched


@pytest.fixture(scope="session")
def wait() -> Callable[..., float]:
    """`wait_until`, for test modules."""
    return wait_until
