"""What a client sees through the gateway when all is well."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web


async def stream(request: web.Request, *pieces: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(0)
    return response


async def test_requests_go_round_the_ready_replicas(start_replicas, start_gateway):
    replicas = await start_replicas(3)
    front = await start_gateway(*replicas)
    seen = []
    for _ in range(6):
        async with front.post({"model": "m"}) as response:
            assert response.status == 200
            seen.append(response.headers["x-pagetide-replica"])
    assert seen == ["m-0", "m-1", "m-2"] * 2


async def test_the_body_arrives_byte_for_byte_and_the_answer_too(start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    front = await start_gateway(replica)
    body = '{ "prompt" : "Grüße \\u00e9",\n"model":"m", "x": 1.50 }'.encode()
    async with front.client.post(front.url + "/v1/completions?a=b%20c", data=body) as response:
        assert await response.json() == {"choices": [{"text": "fine"}]}
    assert replica.bodies == [body]
    assert replica.requests[0].raw_path == "/v1/completions?a=b%20c"


@pytest.mark.parametrize(
    "path",
    ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize", "/detokenize"],
)
async def test_every_path_of_a_server_that_takes_a_model_is_forwarded(path, start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    front = await start_gateway(replica)
    async with front.post({"model": "m"}, path) as response:
        assert response.status == 200
    assert replica.requests[0].path == path


async def test_services_are_told_apart_by_model(start_replicas, start_gateway):
    (a,), (b,) = await start_replicas(1, "a"), await start_replicas(1, "org/b")
    front = await start_gateway(a, b)
    async with front.post({"model": "org/b"}) as response:
        assert response.headers["x-pagetide-replica"] == b.name
    assert not a.requests


async def test_a_request_without_model_goes_to_the_only_service(start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    front = await start_gateway(replica)
    async with front.post({"prompt": "x"}) as response:
        assert response.status == 200


async def test_errors_of_the_replica_pass_through_unchanged(start_replicas, start_gateway):
    (replica,) = await start_replicas(1)

    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "full"}}, status=429, headers={"retry-after": "7"})

    replica.answer = refuse
    front = await start_gateway(replica)
    async with front.post({"model": "m"}) as response:
        assert (response.status, response.headers["retry-after"]) == (429, "7")
        assert await response.json() == {"error": {"message": "full"}}
    assert len(replica.requests) == 1


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        pytest.param("abc-123", True, id="the client's own id is kept"),
        pytest.param(None, False, id="a request without id gets one"),
        pytest.param("two words", False, id="an id with a space is replaced"),
        pytest.param("x" * 300, False, id="an id that is too long is replaced"),
    ],
)
async def test_request_ids(sent, kept, start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    front = await start_gateway(replica)
    async with front.post({"model": "m"}, headers={"x-request-id": sent} if sent else {}) as response:
        given = response.headers.getall("x-request-id")
    assert len(given) == 1
    assert (given[0] == sent) == kept
    assert replica.requests[0].headers.getall("x-request-id") == given


async def test_errors_of_the_gateway_carry_the_request_id_too(start_gateway):
    front = await start_gateway()
    async with front.post({"model": "m"}, headers={"x-request-id": "abc"}) as response:
        assert response.headers["x-request-id"] == "abc"
    async with front.client.get(front.url + "/v1/models", headers={"x-request-id": "def"}) as response:
        assert response.headers["x-request-id"] == "def"


async def test_headers_of_one_connection_stay_on_it(start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    front = await start_gateway(replica)
    extra = {"authorization": "Bearer k", "te": "trailers", "x-session-id": "s", "x-hop": "1", "x-name": "Zoé"}

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({}, headers={"connection": "x-theirs", "x-theirs": "1", "x-ours": "2"})

    replica.answer = answer
    async with front.post({"model": "m"}, headers={**extra, "connection": "keep-alive, X-Hop"}) as response:
        assert "x-theirs" not in response.headers
        assert response.headers["x-ours"] == "2"
    got = replica.requests[0].headers
    assert got["authorization"] == "Bearer k"
    assert got["x-session-id"] == "s"
    assert "te" not in got
    assert "x-hop" not in got
    assert got["x-name"] == "Zoé"
    assert got["host"] == replica.url.removeprefix("http://")


async def test_events_are_passed_on_as_they_come(start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    may_go_on = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await stream(request, b"data: 1\n\n")
        await may_go_on.wait()
        await response.write(b"data: 2\n\ndata: [DONE]\n\n")
        return response

    replica.answer = answer
    front = await start_gateway(replica)
    async with front.post({"model": "m", "stream": True}) as response:
        # The second event does not exist before the first has arrived here.
        assert await response.content.readuntil(b"\n\n") == b"data: 1\n\n"
        may_go_on.set()
        assert await response.read() == b"data: 2\n\ndata: [DONE]\n\n"


async def test_a_stream_is_the_same_however_it_is_cut(start_replicas, start_gateway):
    (replica,) = await start_replicas(1)
    whole = b'data: {"a": "\xc3\xa9"}\r\n\r\n: ping\n\ndata: x\n\ndata: no empty line'

    async def answer(request: web.Request) -> web.StreamResponse:
        return await stream(request, *(whole[i : i + 1] for i in range(len(whole))))

    replica.answer = answer
    front = await start_gateway(replica)
    async with front.post({"model": "m", "stream": True}) as response:
        assert await response.read() == whole


async def test_a_large_body_and_a_large_answer(start_replicas, start_gateway):
    (replica,) = await start_replicas(1)

    async def echo(request: web.Request) -> web.StreamResponse:
        return web.Response(body=await request.read(), content_type="application/json")

    replica.answer = echo
    front = await start_gateway(replica)
    body = json.dumps({"model": "m", "prompt": "x" * (3 << 20)}).encode()
    async with front.client.post(front.url + "/v1/completions", data=body) as response:
        assert await response.read() == body


async def test_two_hundred_clients_at_once_all_get_their_own_answer(start_replicas, start_gateway):
    replicas = await start_replicas(2)

    async def echo(request: web.Request) -> web.StreamResponse:
        number = json.loads(await request.read())["prompt"].encode()
        return await stream(request, *(b"data: " + number + b"\n\n" for _ in range(5)))

    for replica in replicas:
        replica.answer = echo
    front = await start_gateway(*replicas)

    async def one(number: int) -> None:
        async with front.post({"model": "m", "stream": True, "prompt": str(number)}) as response:
            assert await response.read() == b"data: %d\n\n" % number * 5

    await asyncio.gather(*(one(i) for i in range(200)))
    assert await front.metric('pagetide_gateway_requests_total{code="200",model_name="m"}') == 200
    assert await front.metric('pagetide_gateway_requests_in_flight{model_name="m"}') == 0
