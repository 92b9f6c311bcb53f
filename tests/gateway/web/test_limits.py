"""What clients send cannot break the gateway, fill its memory, or keep its connections."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket

import pytest
from aiohttp import web

from pagetide_gateway.access.keys import KeyRing, make_key
from pagetide_gateway.proxy.forward import Access
from pagetide_gateway.replicas import upstream
from pagetide_gateway.routing.routers import ExpectedTime
from pagetide_gateway.serving import server

DEEP = b"[" * 5000 + b"]" * 5000


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"model": "m", "x": ' + DEEP + b"}", id="nested too deep"),
        pytest.param(b'{"model": "m", "messages": ' + DEEP + b"}", id="messages nested too deep"),
        pytest.param(b'{"model": "m", "prompt": "\xff\xfe"}', id="a prompt that is no UTF-8"),
        pytest.param(b'{"model": "m", "messages": [1e999]}', id="a number that there is not"),
        pytest.param(b'{"model": "\xff"}', id="a model that is no UTF-8"),
    ],
)
async def test_a_body_that_cannot_be_read_is_400(body, start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    front = await start_gateway(replica)
    async with front.client.post(front.url + "/v1/completions", data=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "invalid_request_error"
        assert response.headers["x-request-id"]
    assert not replica.requests
    assert await front.metric('pagetide_gateway_requests_total{code="400"') == 1


async def test_a_fault_of_the_gateway_is_an_error_object_too(start_replicas, start_gateway, monkeypatch):
    front = await start_gateway(*await start_replicas(1))

    def fail(*_):
        raise LookupError("a fault in the gateway")

    monkeypatch.setattr(front.registry.find("m").router, "choose", fail)
    async with front.post({"model": "m"}, headers={"x-request-id": "abc"}) as response:
        assert (response.status, response.headers["x-request-id"]) == (500, "abc")
        assert (await response.json())["error"]["type"] == "internal_error"
    assert await front.metric('pagetide_gateway_requests_total{code="500",model_name="m"}') == 1


def stream_until(may_end: asyncio.Event, may_begin: asyncio.Event | None = None):
    """An answer of one event, and its end when the test says so."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if may_begin is not None:
            await may_begin.wait()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await may_end.wait()
        await response.write(b"data: [DONE]\n\n")
        return response

    return answer


async def test_bodies_share_a_budget_until_their_answers_begin(start_replicas, start_gateway, until):
    (replica,) = await start_replicas(1)
    may_begin, may_end = asyncio.Event(), asyncio.Event()
    replica.answer = stream_until(may_end, may_begin)
    front = await start_gateway(replica, max_body=1000, all_bodies=1500)
    body = {"model": "m", "prompt": "x" * 900}
    first = asyncio.create_task(front.client.post(front.url + "/v1/completions", json=body))
    await until(lambda: len(replica.requests) == 1)
    async with front.post(body) as response:
        assert (response.status, int(response.headers["retry-after"]) > 0) == (503, True)
        assert (await response.json())["error"]["code"] == "too_many_bodies"
    may_begin.set()
    streaming = await first  # its answer has begun, and its body is needed no more
    async with front.post(body) as second:
        assert second.status == 200
        may_end.set()
        assert (await second.text()).endswith("[DONE]\n\n")
    assert (await streaming.text()).endswith("[DONE]\n\n")


async def test_long_targets_are_not_remembered(start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    front = await start_gateway(replica)
    upstream._short_url.cache_clear()
    for i in range(3):
        async with front.post({"model": "m"}, f"/v1/completions?x={i}") as response:
            assert response.status == 200
        async with front.post({"model": "m"}, f"/v1/{'x' * 1000}{i}") as response:
            assert response.status == 200
    assert upstream._short_url.cache_info().currsize == 0


async def test_what_caches_nothing_leaves_no_trace_in_the_index(start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    front = await start_gateway(replica, make_router=ExpectedTime)
    body = {"model": "m", "prompt": "x" * 10_000}
    index = front.registry.find("m").router._load(replica.name).index
    async with front.post(body, "/tokenize") as response:
        assert response.status == 200
    assert len(index) == 0
    async with front.post(body) as response:
        assert response.status == 200
    assert len(index) > 0


async def raw(port: int, *pieces: bytes) -> bytes:
    """All that comes back until the gateway closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0.05)
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    return answer


ASKED = b'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 14\r\n\r\n{"model": "m"}'


async def asked(port: int, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    """A connection that stays open, and the status line of its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    async with asyncio.timeout(5):
        return reader, writer, await reader.readline()


@pytest.mark.parametrize(
    ("path", "pieces", "status"),
    [
        pytest.param(b"/v1/completions", [], b"413", id="too large"),
        pytest.param(b"/livez", [b"x", b"x"], b"405", id="not asked for"),
    ],
)
async def test_the_rest_of_a_body_that_nobody_reads_keeps_no_connection(
    path, pieces, status, start_replicas, start_gateway, monkeypatch
):
    monkeypatch.setattr(server, "LIMITS", dataclasses.replace(server.LIMITS, head_timeout_s=0.5))
    front = await start_gateway(*await start_replicas(1))
    head = b"POST " + path + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n"
    assert (await raw(front.port, head, *pieces)).startswith(b"HTTP/1.1 " + status)


async def test_a_refusal_before_the_body_has_come_closes_the_connection(start_replicas, start_gateway):
    front = await start_gateway(*await start_replicas(1), access=Access(KeyRing([make_key("a", "sk-0123456789")])))
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n"
    answer = await raw(front.port, head)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in answer


async def test_a_draining_gateway_keeps_no_connection(start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    may_end = asyncio.Event()
    replica.answer = stream_until(may_end)
    front = await start_gateway(replica)
    body = json.dumps({"model": "m", "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
    writer.write(head + body)
    await reader.readuntil(b"data: 1\n\n")
    front.server.stop()
    async with front.post({"model": "m"}) as response:
        assert (response.status, response.headers["connection"]) == (503, "close")
    may_end.set()
    async with asyncio.timeout(2):
        assert b"[DONE]" in await reader.read()  # to the end of the connection, which is not kept
    writer.close()


async def test_an_upgrade_to_something_else_is_answered_as_plain_http(start_gateway):
    front = await start_gateway()
    head = b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    key = b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    _, writer, status = await asked(front.port, head + key)
    assert status.startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_an_offer_of_another_protocol_costs_a_request_nothing(start_replicas, start_gateway):
    """As Java's client makes it with its first request."""
    (replica,) = await start_replicas(1)
    front = await start_gateway(replica)
    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n"
    _, writer, status = await asked(front.port, ASKED.replace(b"host: x\r\n", b"host: x\r\n" + offer))
    assert (status, replica.bodies) == (b"HTTP/1.1 200 OK\r\n", [b'{"model": "m"}'])
    assert not {"upgrade", "http2-settings"} & {name.lower() for name in replica.requests[0].headers}
    writer.close()


async def test_rubbish_behind_a_request_ends_its_stream_without_an_answer_in_its_middle(start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    replica.answer = stream_until(asyncio.Event())
    front = await start_gateway(replica)
    reader, writer, _ = await asked(front.port, ASKED)
    data = await reader.readuntil(b"data: 1\n\n")
    writer.write(b"\x00rubbish\r\n\r\n")
    async with asyncio.timeout(5):
        data += await reader.read()
        await replica.cancelled.wait()
    assert b"HTTP/1.1" not in data
    writer.close()


async def test_a_client_of_http_1_0_gets_a_stream_without_chunks(start_replicas, start_gateway):
    """As nginx is one, unless it is told otherwise."""
    (replica,) = await start_replicas(1)
    may_end = asyncio.Event()
    may_end.set()
    replica.answer = stream_until(may_end)
    front = await start_gateway(replica)
    answer = await raw(front.port, ASKED.replace(b"HTTP/1.1", b"HTTP/1.0"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert body == b"data: 1\n\ndata: [DONE]\n\n"


async def test_a_client_that_leaves_with_a_request_in_line_cancels_the_one_that_runs(start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    replica.answer = stream_until(asyncio.Event())
    front = await start_gateway(replica)
    reader, writer, _ = await asked(front.port, ASKED * 2)
    await reader.readuntil(b"data: 1\n\n")
    writer.close()
    async with asyncio.timeout(5):
        await replica.cancelled.wait()


async def test_what_is_no_http_gets_an_error_object(start_gateway):
    front = await start_gateway()
    answer = await raw(front.port, b"\x16\x03\x01 hello\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
    assert b"\r\nx-request-id: " in answer


async def test_a_client_that_takes_nothing_is_let_go(start_replicas, start_gateway, monkeypatch):
    monkeypatch.setattr(server, "LIMITS", dataclasses.replace(server.LIMITS, write_timeout_s=1.0))
    (replica,) = await start_replicas(1)
    piece = b"data: " + b"x" * 100_000 + b"\n\n"

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(piece)

    replica.answer = endless
    front = await start_gateway(replica)
    async with front.post({"model": "m", "stream": True}):  # and reads no more
        await asyncio.wait_for(replica.cancelled.wait(), 10)
    assert await front.metric('pagetide_gateway_client_disconnects_total{model_name="m"}') == 1


async def test_connections_of_clients_notice_a_machine_that_is_gone(start_gateway, until):
    """A laptop that is shut closes nothing."""
    front = await start_gateway()
    _, writer = await asyncio.open_connection("127.0.0.1", front.port)
    connections = front.server.server_state.connections
    await until(lambda: bool(connections))
    ours = [c.transport.get_extra_info("socket") for c in connections]
    assert all(c.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for c in ours)
    writer.close()
