"""Answers that break off in the middle: the client gets an error, and takes nothing half for whole."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import ClientPayloadError, web

from pagetide_gateway.replicas.registry import Health

from .failing import begin_stream


async def test_death_in_the_middle_of_a_stream_is_told_as_an_event(start_replicas, start_gateway):
    bad, good = await start_replicas(2)

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request, b'data: {"n": 1}\n\ndata: {"n": 2}\n\ndata: {"half')
        await asyncio.sleep(0.05)
        request.transport.abort()
        return response

    bad.answer = answer
    front = await start_gateway(bad, good)
    async with front.post({"model": "m", "stream": True}) as response:
        events = (await response.text()).removesuffix("\n\n").split("\n\n")
    assert events[:2] == ['data: {"n": 1}', 'data: {"n": 2}']
    error = json.loads(events[2].removeprefix("data: "))["error"]
    assert bad.name in error["message"]
    assert events[3:] == ["data: [DONE]"]
    assert not good.requests, "an answer that has begun must not be begun again elsewhere"
    assert await front.metric('pagetide_gateway_broken_streams_total{model_name="m"}') == 1


@pytest.mark.parametrize(
    ("last", "is_whole"),
    [
        pytest.param(b"data: [DONE]\n\n", True, id="said to be over"),
        pytest.param(b"data: 2\n\n", False, id="never said to be over"),
    ],
)
async def test_a_stream_that_only_its_connection_ends_is_whole_only_if_it_says_so(last, is_whole, start_gateway):
    """The end of such a body looks the same whether the replica is done or dead."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        kind = b"text/event-stream" if head.startswith(b"POST") else b"application/json"
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: " + kind + b"\r\n\r\n")
        writer.write(b"data: 1\n\n" + last if head.startswith(b"POST") else b'{"data": []}')
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    front = await start_gateway()
    front.registry.put("m", {"m-0": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"})
    front.registry.find("m").replicas["m-0"].health = Health(ready=True)
    async with front.post({"model": "m", "stream": True}) as response:
        text = await response.text()
    assert text.endswith("data: [DONE]\n\n")
    assert ('"error"' in text) is not is_whole
    server.close()


async def test_death_in_the_middle_of_a_large_plain_body_ends_the_connection(start_replicas, start_gateway):
    (replica,) = await start_replicas(1)

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "application/json", "content-length": str(3 << 20)})
        await response.prepare(request)
        await response.write(b"x" * (2 << 20))
        request.transport.abort()
        return response

    replica.answer = answer
    front = await start_gateway(replica)
    with pytest.raises(ClientPayloadError):
        async with front.post({"model": "m"}) as response:
            await response.read()


async def test_a_stream_under_way_ends_well_when_the_gateway_is_told_to_stop(start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    may_go_on = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request, b"data: 1\n\n")
        await may_go_on.wait()
        await response.write(b"data: [DONE]\n\n")
        return response

    replica.answer = answer
    front = await start_gateway(replica)
    async with front.post({"model": "m", "stream": True}) as response:
        await response.content.readuntil(b"\n\n")
        front.server.stop()
        await asyncio.sleep(0.3)  # several turns of the server's own loop, which looks every 0.1 s
        may_go_on.set()
        assert await response.read() == b"data: [DONE]\n\n"
