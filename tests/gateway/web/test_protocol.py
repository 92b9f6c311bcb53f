"""Clients that connect and do not ask, or not in time."""

from __future__ import annotations

import asyncio

import pytest

from pagetide_gateway.web import protocol


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.3)


async def answer_to(port: int, *pieces: bytes, pause: float = 0.1) -> bytes:
    """All that comes until the gateway closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def write() -> None:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(pause)

    writing = asyncio.create_task(write())
    async with asyncio.timeout(5):
        answer = await reader.read()
    writing.cancel()
    writer.close()
    return answer


@pytest.mark.usefixtures("impatient")
async def test_a_head_that_comes_drop_by_drop_is_408(start_gateway):
    front = await start_gateway()
    answer = await answer_to(front.port, b"GET /livez HTTP/1.1\r\n", *[b"x: y\r\n"] * 40)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"error"' in answer


@pytest.mark.usefixtures("impatient")
async def test_a_connection_that_asks_nothing_is_closed(start_gateway):
    front = await start_gateway()
    assert await answer_to(front.port) == b""


@pytest.mark.usefixtures("impatient")
async def test_the_second_head_of_a_connection_may_not_be_slow_either(start_gateway):
    front = await start_gateway()
    answer = await answer_to(front.port, b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /li", *[b"v"] * 40)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in answer


async def test_a_huge_head_is_431(start_gateway):
    front = await start_gateway()
    answer = await answer_to(front.port, b"GET /livez HTTP/1.1\r\n", *[b"x: " + b"y" * 9000 + b"\r\n"] * 9, pause=0)
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_a_huge_head_is_431_though_it_comes_in_one_piece(start_gateway, until):
    front = await start_gateway()
    connections = front.server.server_state.connections
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
    await until(lambda: bool(connections))
    (ours,) = connections
    ours.data_received(b"GET /livez HTTP/1.1\r\nhost: x\r\nx: " + b"y" * protocol.MOST_HEAD_BYTES + b"\r\n\r\n")
    async with asyncio.timeout(5):
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
    writer.close()


@pytest.mark.usefixtures("impatient")
async def test_a_long_answer_is_not_cut_by_what_its_client_sends_meanwhile(start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    plain = replica.answer

    async def slow(request):
        await asyncio.sleep(1)
        return await plain(request)

    replica.answer = slow
    front = await start_gateway(replica)
    body = b'{"model": "m"}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    answer = await answer_to(front.port, head + body, b"GET /li")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"fine"' in answer
    assert b"HTTP/1.1 408 " in answer
