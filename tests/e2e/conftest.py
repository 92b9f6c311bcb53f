"""Runs `pagetide up` as a user does, in a process of its own, and sees to it that nothing is left of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
MARK = "PAGETIDE_TEST_RUN"


def wait_for(look: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first true answer of `look`; fails when there is none within the time."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            pytest.fail(f"did not come true within {seconds} s")
        time.sleep(0.02)
    return found


class Run:
    """A command under test, and every process that stems from it, known by a mark in their environment."""

    def __init__(
        self,
        arguments: list[str],
        folder: Path,
        program: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        is_to_last: bool = False,
    ) -> None:
        """`is_to_last`: that it ends by itself, before it is ended, is a fault."""
        self.mark, self.is_to_last = uuid.uuid4().hex, is_to_last
        path = os.pathsep.join(str(ROOT / p) for p in ("operator", "server", "kernels"))
        self.output = folder / f"output-{self.mark}"
        self.process = subprocess.Popen(
            [program, *arguments],
            cwd=folder,
            env={**os.environ, MARK: self.mark, "PYTHONPATH": path, "COLUMNS": "200", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=self.output.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # As on a terminal, also where the tests run in the background, which ignores Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    @property
    def text(self) -> str:
        """What it has printed so far, on stdout and stderr."""
        return self.output.read_text()

    @property
    def url(self) -> str:
        """The gateway's address without `/v1`, as soon as it is printed."""
        line = wait_for(lambda: next((x for x in self.text.splitlines() if x.startswith("listening on ")), None))
        return line.removeprefix("listening on ").removesuffix("/v1")

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10) as response:
            return json.load(response)

    def post(self, body: dict[str, Any]) -> Any:
        """An answer that is still open."""
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode())
        return urllib.request.urlopen(request, timeout=30)

    def service(self, name: str) -> dict[str, Any]:
        return next(s for s in self.get("/status")["services"] if s["name"] == name)

    def end(self, number: int = signal.SIGTERM, seconds: float = 20.0) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def left_over(self) -> list[int]:
        """Processes of this run that are still there."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """`run("-m", "pagetide_cli.main", ...)` starts Python so; at the end of the test all of it must be gone."""
    yield from running_in(tmp_path)


@pytest.fixture(scope="session")
def fake_up() -> str:
    """The program that is `pagetide up` with fake replicas."""
    return str(HERE / "up_with_fakes.py")


@pytest.fixture
def up(run: Callable[..., Run], fake_up: str) -> Callable[..., Run]:
    """`up(FILE...)` on a free port, with fake replicas."""
    return lambda *arguments: run(fake_up, "--port=0", *arguments)


@pytest.fixture(scope="module")
def module_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Run]]:
    """The same for what all tests of a module look at together."""
    yield from running_in(tmp_path_factory.mktemp("run"))


# Starters of commands that the tests of a folder share.
SHARED: list[Iterator[Callable[..., Run]]] = []


@pytest.fixture(scope="session")
def session_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Run]]:
    """The same for what all tests of a folder look at together; it ends behind the last of them."""
    starting = running_in(tmp_path_factory.mktemp("run"))
    SHARED.append(starting)
    yield next(starting)
    next(starting, None)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End what a folder's tests shared where the next test is another folder's: it would slow down all that follow."""
    folder = HERE / item.path.relative_to(HERE).parts[0]
    if nextitem is None or folder not in nextitem.path.parents:
        while SHARED:
            next(SHARED.pop(), None)


def running_in(folder: Path) -> Iterator[Callable[..., Run]]:
    """A starter of commands; going on from there ends them all."""
    runs: list[Run] = []

    def start(*arguments: str, **more: Any) -> Run:
        runs.append(Run(list(arguments), folder, **more))
        return runs[-1]

    yield start
    ended = [one.text for one in runs if one.is_to_last and one.process.poll() is not None]
    for one in runs:
        one.process.kill()
        one.process.wait()
        try:
            wait_for(lambda one=one: not one.left_over(), 5)
        finally:
            for pid in one.left_over():
                os.kill(pid, signal.SIGKILL)
    assert not ended, ended


@pytest.fixture(scope="session")
def until() -> Callable[..., Any]:
    return wait_for


@pytest.fixture
def manifest(tmp_path: Path) -> Callable[..., str]:
    """`manifest("name", spec...)` writes a service's file and returns its path; the model is an empty file."""

    def write(name: str, **spec: Any) -> str:
        model = tmp_path / "model.gguf"
        model.touch()
        document = {
            "apiVersion": "pagetide.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": name},
            "spec": {"model": {"uri": f"file://{model}"}, **spec},
        }
        path = tmp_path / f"{name}.yaml"
        path.write_text(json.dumps(document))  # JSON is YAML
        return str(path)

    return write
