"""Until a client has the first piece of an answer, another replica can take over; whatever the head said."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web


async def head_only(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    return response


async def head_and_death(request: web.Request) -> web.StreamResponse:
    response = await head_only(request)
    await asyncio.sleep(0.05)
    request.transport.abort()
    return response


async def half_an_event_and_death(request: web.Request) -> web.StreamResponse:
    response = await head_only(request)
    await response.write(b'data: {"half')
    await asyncio.sleep(0.05)
    request.transport.abort()
    return response


async def head_and_silence(request: web.Request) -> web.StreamResponse:
    response = await head_only(request)
    await asyncio.sleep(60)
    return response


@pytest.mark.parametrize("fault", [head_and_death, half_an_event_and_death, head_and_silence])
async def test_a_head_is_no_answer(fault, start_replicas, start_gateway):
    """Some servers send the head before the prompt is computed."""
    bad, good = await start_replicas(2)
    bad.answer = fault
    front = await start_gateway(bad, good, stall_s=0.5)
    async with asyncio.timeout(10), front.post({"model": "m", "stream": True}) as response:
        assert (response.status, response.headers["x-pagetide-replica"]) == (200, good.name)
    assert await front.metric('pagetide_gateway_retries_total{model_name="m"}') == 1


async def test_the_first_byte_is_timed_and_not_the_head(start_replicas, start_gateway):
    (replica,) = await start_replicas(1)

    async def slow(request: web.Request) -> web.StreamResponse:
        response = await head_only(request)
        await asyncio.sleep(0.3)
        await response.write(b"data: [DONE]\n\n")
        return response

    replica.answer = slow
    front = await start_gateway(replica)
    async with front.post({"model": "m", "stream": True}) as response:
        assert await response.text() == "data: [DONE]\n\n"
    assert await front.metric('pagetide_gateway_first_byte_seconds_sum{model_name="m"}') >= 0.3


async def test_a_stall_is_not_waited_for_twice(start_replicas, start_gateway):
    """The only replica is asked again where it closed an idle connection, and not where it hangs."""
    (bad,) = await start_replicas(1)
    bad.answer = head_and_silence
    front = await start_gateway(bad, stall_s=0.4)
    async with asyncio.timeout(10), front.post({"model": "m", "stream": True}) as response:
        assert response.status == 502
        assert "no sign of work" in (await response.json())["error"]["message"]
    assert len(bad.requests) == 1


async def test_a_removed_replica_that_hangs_is_given_up_like_any_other(start_replicas, start_gateway, until):
    (bad,) = await start_replicas(1)
    bad.answer = head_and_silence
    front = await start_gateway(bad, stall_s=0.5)
    task = asyncio.create_task(front.client.post(front.url + "/v1/completions", json={"model": "m", "stream": True}))
    await until(lambda: len(bad.requests) == 1)
    front.registry.put("m", {})
    assert await front.metric('pagetide_gateway_requests_in_flight{model_name="m"}') == 1
    async with asyncio.timeout(5):
        assert (await task).status == 502
    assert await front.metric('pagetide_gateway_requests_in_flight{model_name="m"}') == 0


async def test_a_lost_stream_is_told_why(start_replicas, start_gateway):
    (bad,) = await start_replicas(1)

    async def begin_and_hang(request: web.Request) -> web.StreamResponse:
        response = await head_only(request)
        await response.write(b"data: 1\n\n")
        await asyncio.sleep(60)
        return response

    bad.answer = begin_and_hang
    front = await start_gateway(bad, stall_s=0.4)
    async with asyncio.timeout(5), front.post({"model": "m", "stream": True}) as response:
        assert "no sign of work" in await response.text()
