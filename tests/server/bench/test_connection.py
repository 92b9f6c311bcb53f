"""How a connection is made to a host that has several addresses."""

from __future__ import annotations

import asyncio
import socket

import pytest

from pagetide_server.bench.connection import Client
from pagetide_server.bench.figures import Outcome
from pagetide_server.bench.load import REFUSED


@pytest.fixture
def port(unused_tcp_port):
    """One on which nobody listens."""
    return unused_tcp_port


@pytest.fixture(autouse=True)
def two_addresses(monkeypatch, port):
    """`twin` has two of them."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", port)) for last in (2, 3)]
    plain = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest, **more: found if host == "twin" else plain(host, *rest, **more)
    )


async def outcome_of(port):
    client, outcome = Client(f"http://twin:{port}/", {}, 5), Outcome(0.0)
    await client.post(b"{}", outcome)
    client.close()
    return outcome


async def test_all_that_refuse_count_as_a_refusal(port):
    assert (await outcome_of(port)).failure == REFUSED


async def test_the_second_is_tried_where_the_first_refuses(port):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 no\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.3", port)
    async with server:
        assert "503" in (await outcome_of(port)).failure
