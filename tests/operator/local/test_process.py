"""Ends and last words of processes, and ports for new ones."""

from __future__ import annotations

import socket

import pytest

from pagetide_operator.local.process import describe_exit, free_port, last_line


@pytest.mark.parametrize(("code", "text"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "killed by SIGKILL")])
def test_describe_exit(code, text):
    assert describe_exit(code) == text


@pytest.mark.parametrize(
    ("content", "line"),
    [
        pytest.param(b"one\ntwo\n", "two", id="the last line"),
        pytest.param(b"one\n\n  \n", "one", id="blank lines do not count"),
        pytest.param(b"loading\n12:00 INFO pagetide.access 127.0.0.1 GET /readyz 503\n", "loading", id="no probes"),
        pytest.param(b"x" * 100_000 + b"\nend", "end", id="only the end is read"),
        pytest.param(
            b"12:00 INFO pagetide.access 127.0.0.1 GET /readyz 503 seconds=0.000436\n" * 1001,
            "",
            id="nor half a line of one",
        ),
        pytest.param(b"\xff\xfe\n", "\ufffd\ufffd", id="bytes that are no text"),
        pytest.param(b"", "", id="an empty log"),
        pytest.param(None, "", id="no log"),
    ],
)
def test_last_line(content, line, tmp_path):
    log = tmp_path / "log"
    if content is not None:
        log.write_bytes(content)
    assert last_line(log) == line


def test_a_port_that_is_taken_is_not_given():
    ports = {free_port(()) for _ in range(20)}
    busy = socket.create_server(("127.0.0.1", min(ports)))
    with busy, pytest.raises(OSError, match="no free port"):
        free_port(set(range(20000, 32000)) - {min(ports)})
