"""Clients that leave, or are slow to write or to read: the replica is free, and nobody else waits."""

from __future__ import annotations

import asyncio
import socket

from aiohttp import web

from pagetide_gateway.web import asgi

from .failing import begin_stream


async def test_a_client_that_leaves_mid_stream_frees_the_replica(start_replicas, start_gateway, until):
    (replica,) = await start_replicas(1)

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request, b"data: 1\n\n")
        await asyncio.sleep(60)
        return response

    replica.answer = answer
    front = await start_gateway(replica)
    async with front.post({"model": "m", "stream": True}) as response:
        await response.content.readuntil(b"\n\n")
        response.close()
    await asyncio.wait_for(replica.cancelled.wait(), 2)
    await until(lambda: next(front.registry.replicas())[1].in_flight == 0)
    assert await front.metric('pagetide_gateway_client_disconnects_total{model_name="m"}') == 1


async def test_a_client_that_leaves_before_the_first_byte_frees_the_replica(start_replicas, start_gateway, until):
    (replica,) = await start_replicas(1)

    async def answer(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    replica.answer = answer
    front = await start_gateway(replica)
    asking = asyncio.create_task(front.client.post(front.url + "/v1/completions", json={"model": "m"}))
    await until(lambda: len(replica.requests) == 1)
    asking.cancel()
    await asyncio.wait_for(replica.cancelled.wait(), 2)
    assert len(replica.requests) == 1


async def test_a_body_that_does_not_come_is_408(start_replicas, start_gateway, monkeypatch):
    monkeypatch.setattr(asgi, "BODY_TIMEOUT_S", 0.1)
    front = await start_gateway(*await start_replicas(1))
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
    async with asyncio.timeout(10):
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        await reader.read()  # to the end of the connection
    writer.close()


async def test_a_body_that_comes_drop_by_drop_is_408(start_replicas, start_gateway, monkeypatch):
    monkeypatch.setattr(asgi, "BODY_TIMEOUT_S", 0.3)
    front = await start_gateway(*await start_replicas(1), max_body=1000)
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n")

    async def drip() -> None:
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    async with asyncio.timeout(10):
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
    dripping.cancel()
    writer.close()


async def test_a_slow_reader_holds_the_replica_back_and_nobody_else(start_replicas, start_gateway, until):
    (replica,) = await start_replicas(1)
    piece = b"data: " + b"x" * 10_000 + b"\n\n"
    written = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal written
        response = await begin_stream(request, piece)
        while True:
            await response.write(piece)
            written += len(piece)

    plain, replica.answer = replica.answer, endless
    front = await start_gateway(replica)
    with socket.socket() as client:
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", front.port))
        body = b'{"model": "m", "stream": true}'
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        await asyncio.get_running_loop().sock_sendall(client, head + body)
        await until(lambda: written > 0)
        replica.answer = plain
        before = -1
        while before != written:
            before = written
            # Others are answered all the while.
            async with front.post({"model": "m"}) as response:
                assert response.status == 200
            await asyncio.sleep(0.2)
            # What lies between is the sockets' buffers, not an ever longer queue of ours.
            assert written < 32 << 20
    await asyncio.wait_for(replica.cancelled.wait(), 2)
