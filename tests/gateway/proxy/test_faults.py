"""Replicas that die, refuse, hang or break off, and clients that leave: nobody waits in silence."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from aiohttp import ClientPayloadError, web

from pagetide_gateway.polling import health
from pagetide_gateway.replicas.registry import Health
from pagetide_gateway.web import asgi


async def begin_stream(request: web.Request, first: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await response.write(first)
    return response


async def die_at_once(request: web.Request) -> web.StreamResponse:
    request.transport.abort()
    return web.Response()


async def die_in_small_body(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "application/json", "content-length": "100"})
    await response.prepare(request)
    await response.write(b'{"half": ')
    request.transport.abort()
    return response


async def answer_503(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "draining"}}, status=503)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(die_at_once, id="closes the connection before it answers"),
        pytest.param(die_in_small_body, id="breaks off in a body that no client has seen a byte of"),
        pytest.param(answer_503, id="answers 503 because it drains"),
    ],
)
async def test_before_the_first_byte_another_replica_takes_over(fault, start_replicas, start_gateway):
    bad, good = await start_replicas(2)
    bad.answer = fault
    front = await start_gateway(bad, good)
    async with front.post({"model": "m"}) as response:
        assert response.status == 200
        assert response.headers["x-pagetide-replica"] == good.name
    assert (len(bad.requests), len(good.requests)) == (1, 1)
    assert await front.metric('pagetide_gateway_retries_total{model_name="m"}') == 1


async def answer_429(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "full"}}, status=429, headers={"retry-after": "7"})


@pytest.mark.parametrize(
    ("full", "status", "asked"),
    [pytest.param(1, 200, 2, id="another has room"), pytest.param(4, 429, 2, id="two are full, and others not asked")],
)
async def test_a_full_queue_is_left_for_one_other(full, status, asked, start_replicas, start_gateway):
    replicas = await start_replicas(4)
    for replica in replicas[:full]:
        replica.answer = answer_429
    front = await start_gateway(*replicas)
    async with front.post({"model": "m"}) as response:
        assert response.status == status
        assert (response.headers.get("retry-after") == "7") is (status == 429)
    assert sum(len(r.requests) for r in replicas) == asked


async def test_a_replica_that_is_gone_is_passed_over(start_replicas, start_gateway):
    gone, good = await start_replicas(2)
    front = await start_gateway(gone, good)
    await gone.stop()
    for _ in range(4):
        async with front.post({"model": "m"}) as response:
            assert (response.status, response.headers["x-pagetide-replica"]) == (200, good.name)


@pytest.fixture
def soon(monkeypatch):
    """A silent replica is given up on within a second."""
    monkeypatch.setattr(health, "TIMEOUT_S", 0.1)


def go_silent(replica):
    """From the next request on it takes connections and says nothing more."""

    async def answer(request: web.Request) -> web.StreamResponse:
        replica.may_speak.clear()
        await asyncio.sleep(60)
        return web.Response()

    replica.answer = answer


@pytest.mark.usefixtures("soon")
async def test_another_takes_over_from_one_that_falls_silent(start_replicas, start_gateway):
    silent, good = await start_replicas(2)
    go_silent(silent)
    front = await start_gateway(silent, good)
    async with asyncio.timeout(10), front.post({"model": "m"}) as response:
        assert (response.status, response.headers["x-pagetide-replica"]) == (200, good.name)


@pytest.mark.usefixtures("soon")
async def test_where_there_is_no_other_the_client_of_a_silent_one_is_told(start_replicas, start_gateway):
    (silent,) = await start_replicas(1)
    go_silent(silent)
    front = await start_gateway(silent)
    async with asyncio.timeout(10), front.post({"model": "m"}) as response:
        assert response.status == 502
        assert "no answer from /readyz" in (await response.json())["error"]["message"]


@pytest.mark.usefixtures("soon")
async def test_a_stream_that_falls_silent_with_its_replica_ends_with_an_error(start_replicas, start_gateway):
    (silent,) = await start_replicas(1)

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await begin_stream(request, b"data: 1\n\n")
        silent.may_speak.clear()
        await asyncio.sleep(60)
        return response

    silent.answer = answer
    front = await start_gateway(silent)
    async with asyncio.timeout(10), front.post({"model": "m", "stream": True}) as response:
        events = (await response.text()).removesuffix("\n\n").split("\n\n")
    assert events[0] == "data: 1"
    assert json.loads(events[1].removeprefix("data: "))["error"]["code"] == "upstream_failed"
    assert events[2:] == ["data: [DONE]"]


async def test_a_request_that_may_have_killed_a_replica_is_repeated_once_only(start_replicas, start_gateway):
    replicas = await start_replicas(4)
    for replica in replicas:
        replica.answer = die_at_once
    front = await start_gateway(*replicas)
    async with front.post({"model": "m"}) as response:
        assert response.status == 502
        assert (await response.json())["error"]["code"] == "upstream_failed"
    assert sum(len(r.requests) for r in replicas) == 2


async def test_the_only_replica_is_asked_again_when_it_closed_an_idle_connection(start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    answers = [die_at_once]
    plain = replica.answer

    async def answer(request: web.Request) -> web.StreamResponse:
        return await (answers.pop() if answers else plain)(request)

    replica.answer = answer
    front = await start_gateway(replica)
    async with front.post({"model": "m"}) as response:
        assert response.status == 200


async def test_503_when_every_replica_drains(start_replicas, start_gateway):
    replicas = await start_replicas(2)
    for replica in replicas:
        replica.answer = answer_503
    front = await start_gateway(*replicas)
    async with front.post({"model": "m"}) as response:
        assert response.status == 503
        assert int(response.headers["retry-after"]) > 0
        assert (await response.json())["error"]["code"] == "no_ready_replica"


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


async def test_a_replica_that_turns_unready_gets_no_more_requests(start_replicas, start_gateway, until):
    a, b = await start_replicas(2)
    front = await start_gateway(a, b)
    a.ready = 503
    await until(lambda: not front.registry.find("m").replicas["m-0"].health.ready)
    for _ in range(3):
        async with front.post({"model": "m"}) as response:
            assert response.headers["x-pagetide-replica"] == "m-1"
    a.ready = 200
    await until(lambda: front.registry.find("m").replicas["m-0"].health.ready)


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
