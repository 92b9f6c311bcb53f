"""`pagetide top` on terminals that are narrow, low, without colour, or none."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest
from aiohttp import web
from rich.console import Console

from pagetide_operator.top.frame import Frame, Row
from pagetide_operator.top.replicas import COLUMNS, fit
from pagetide_operator.top.screen import Screen

BUSY = {"running": 12, "waiting": 3, "batch": 1.0, "kv": 1.0, "hits": 1.0, "tokens": 12345.0, "queue": 12.34,
        "first_token": 12.34}  # fmt: skip
ROWS = [
    Row("production/llama-3-70b", "llama-3-70b-7d9f8c6b5-x2x9k", "ready", **BUSY),
    Row("production/llama-3-70b", "llama-3-70b-7d9f8c6b5-abcde", "no answer: HTTP status 503"),
]
METRICS = "".join(f'pagetide_{name}{{model_name="m"}} 1\n' for name in ("requests_running", "engine_steps_total"))


def drawn(frame: Frame, width: int, height: int | None = None) -> list[str]:
    console = Console(width=width, height=height, force_terminal=False)
    options = console.options if height is None else console.options.update(height=height)
    lines = console.render_lines(Screen(frame), options.update(max_width=width), pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


@pytest.mark.parametrize("width", [200, 120, 80, 60, 40])
def test_no_number_is_cut_and_nothing_is_wider_than_the_terminal(width: int) -> None:
    lines = [line for line in drawn(Frame("t", ROWS), width) if line]
    assert max(map(len, lines)) <= width
    heading, *rows = lines[1:]
    # The one that asks for most is told whole, or not at all.
    for column in COLUMNS[3:]:
        if column.name in heading:
            assert column.read(ROWS[0]).plain in rows[0]
    assert "running" in heading or width < 50
    assert "x2x9k" in rows[0]
    assert "abcde" in rows[1]


def test_what_matters_least_is_left_out_first() -> None:
    natural = {column.name: 12 for column in COLUMNS}
    names = [set(fit(natural, room)) for room in range(200, 20, -1)]
    gone = [before - after for before, after in itertools.pairwise(names) if before != after]
    order = ["hits", "batch", "first token p95", "queue p95", "tokens/s", "KV", "waiting", "running"]
    assert [one for group in gone for one in sorted(group)] == order
    assert {"service", "replica", "state"} <= names[-1]


def test_on_a_low_terminal_those_in_trouble_are_seen() -> None:
    rows = [Row("s", f"pod-{index:02}", "ready") for index in range(50)] + [Row("s", "lost", "unready: loading")]
    frame = Frame("t", rows, [f"service {index}" for index in range(50)], note="something")
    lines = drawn(frame, 80, 24)
    assert len(lines) <= 24
    assert any("lost" in line for line in lines)
    assert "... 45 more services" in lines
    assert any("more replicas" in line for line in lines)
    assert "something" in lines
    assert sum("pod-" in line for line in drawn(frame, 80)) == 50


def test_names_are_no_markup() -> None:
    text = "\n".join(drawn(Frame("[red]t", [Row("[bold]s[/bold]", "[link=x]r", "ready")], ["[b]s"]), 120))
    for name in ("[red]t", "[bold]s[/bold]", "[link=x]r", "[b]s"):
        assert name in text


@pytest.fixture
async def server():
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=METRICS)

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield "http://{}:{}".format(*runner.addresses[0][:2])
    await runner.cleanup()


def top(url: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What it prints where there is no terminal."""
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    command = [sys.executable, "-m", "pagetide_cli.main", "top", url, "--interval=0.2", *arguments]
    return subprocess.run(command, env={**kept, **environment}, capture_output=True, text=True, timeout=60)


async def test_without_a_terminal_it_is_one_view_as_wide_as_it_wants(server: str) -> None:
    done = await asyncio.to_thread(top, server)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "first token p95" in done.stdout


@pytest.mark.parametrize(
    ("environment", "has_codes"),
    [
        pytest.param({"TERM": "xterm"}, True, id="with colour"),
        pytest.param({"TERM": "xterm", "NO_COLOR": "1"}, False, id="NO_COLOR"),
        pytest.param({"TERM": "dumb"}, False, id="dumb: one view, no codes"),
    ],
)
async def test_colour_is_left_out_where_nobody_wants_it(server: str, environment: dict, has_codes: bool) -> None:
    text = await asyncio.to_thread(on_a_terminal, server, environment)
    assert ("\x1b[32m" in text) == has_codes
    assert "ready" in text


def on_a_terminal(url: str, environment: dict[str, str]) -> str:
    """One view, on a terminal of 80 by 24."""
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "pagetide_cli.main", "top", url, "--interval=0.2"]
    command += [] if environment["TERM"] == "dumb" else ["--once"]
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    done = subprocess.run(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env={**kept, **environment}, timeout=60
    )
    os.close(terminal)
    text = os.read(screen, 1 << 16).decode()
    os.close(screen)
    assert done.returncode == 0, text
    return text
