"""Ends of processes, and ports for new ones."""

from __future__ import annotations

import socket

import pytest

from pagetide_operator.local.process import describe_exit, free_port


@pytest.mark.parametrize(("code", "text"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "killed by SIGKILL")])
def test_describe_exit(code, text):
    assert describe_exit(code) == text


def test_a_port_that_is_taken_is_not_given():
    ports = {free_port(()) for _ in range(20)}
    busy = socket.create_server(("127.0.0.1", min(ports)))
    with busy, pytest.raises(OSError, match="no free port"):
        free_port(set(range(20000, 32000)) - {min(ports)})
