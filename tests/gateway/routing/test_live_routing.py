"""The expected-time router at work: real gateways, real sockets."""

from __future__ import annotations

import asyncio
from collections import Counter

from aiohttp import web

from pagetide_gateway.routing.routers import ExpectedTime

LONG = "Once upon a time there was a lighthouse keeper. " * 40


def chat(*contents: str) -> dict:
    roles = ("user", "assistant")
    return {"model": "m", "messages": [{"role": roles[i % 2], "content": c} for i, c in enumerate(contents)]}


async def ask(front, body: dict, **headers: str) -> str:
    async with front.post(body, "/v1/chat/completions", headers=headers) as response:
        assert response.status == 200
        return response.headers["x-pagetide-replica"]


async def test_a_conversation_stays_where_its_beginning_is(start_replicas, start_gateway):
    front = await start_gateway(*await start_replicas(4), make_router=ExpectedTime)
    first = await ask(front, chat(LONG))
    for _ in range(6):  # others in between
        await ask(front, chat(f"{_} {LONG}"))
    assert await ask(front, chat(LONG, "And then?", "He saw a ship.")) == first
    assert await front.metric('pagetide_gateway_routed_total{model_name="m",reason="prefix"}') >= 1


async def test_sessions_are_pinned(start_replicas, start_gateway):
    front = await start_gateway(*await start_replicas(4), make_router=ExpectedTime)
    where = {s: {await ask(front, chat(f"{i} {LONG}"), **{"x-session-id": s}) for i in range(4)} for s in "abcdefgh"}
    assert all(len(names) == 1 for names in where.values())
    assert len(set.union(*where.values())) > 1
    assert await front.metric('pagetide_gateway_routed_total{model_name="m",reason="session"}') == 32


async def test_a_gateway_that_restarts_and_one_beside_it_choose_alike(start_replicas, start_gateway):
    """None keeps what others need: a new one goes by the same hash."""
    replicas = await start_replicas(4)
    one = await start_gateway(*replicas, make_router=ExpectedTime)
    other = await start_gateway(*replicas, make_router=ExpectedTime)
    prompts = [chat(f"{i} {LONG}") for i in range(12)]
    before = [await ask(one, body) for body in prompts]
    assert [await ask(other, body) for body in prompts] == before
    one.server.stop()
    await asyncio.wait_for(one.serving, 5)
    again = await start_gateway(*replicas, make_router=ExpectedTime)
    assert [await ask(again, body) for body in prompts] == before


async def test_a_hot_beginning_spreads_when_its_replica_has_enough(start_replicas, start_gateway, until):
    replicas = await start_replicas(3)
    may_go_on = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await may_go_on.wait()
        return web.json_response({})

    for replica in replicas:
        replica.answer = slow
    front = await start_gateway(*replicas, make_router=ExpectedTime)
    tasks = [asyncio.create_task(ask(front, chat(LONG, "x", str(i)))) for i in range(60)]
    await until(lambda: sum(len(r.requests) for r in replicas) == 60)
    may_go_on.set()
    spread = Counter(await asyncio.gather(*tasks))
    assert max(spread.values()) <= 1.5 * 20 + 5
    assert len(spread) == 3


async def test_a_replica_killed_mid_stream_loses_its_streams_and_no_more(start_replicas, start_gateway, until):
    """Its clients get an error event, never silence; those who ask then are answered elsewhere."""
    replicas = await start_replicas(2)

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number in range(1000):
            await response.write(b"data: {}\n\n")
            await asyncio.sleep(0.01)
            if number > 50 and whole.is_set():
                break
        await response.write(b"data: [DONE]\n\n")
        return response

    whole = asyncio.Event()
    for replica in replicas:
        replica.answer = stream
    front = await start_gateway(*replicas, make_router=ExpectedTime)

    async def read(number: int) -> tuple[str, bool]:
        body = {**chat(f"{number} {LONG}"), "stream": True}
        async with front.post(body, "/v1/chat/completions") as response:
            text = await response.text()
        assert text.endswith("data: [DONE]\n\n")
        return response.headers["x-pagetide-replica"], '"error"' in text

    tasks = [asyncio.create_task(read(i)) for i in range(20)]
    await until(lambda: sum(len(r.requests) for r in replicas) == 20)
    victim = replicas[0]
    await victim.stop()
    whole.set()
    late = [asyncio.create_task(read(100 + i)) for i in range(5)]
    results = await asyncio.gather(*tasks)
    assert {name for name, failed in results if failed} == {victim.name}
    assert all(failed == (name == victim.name) for name, failed in results)
    assert {await task for task in late} == {(replicas[1].name, False)}
