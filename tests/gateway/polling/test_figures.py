"""What is read of replicas' figures, and what a hanging one shows."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web

from pagetide_gateway.polling.figures import parse, stall_limit
from pagetide_gateway.replicas.registry import Health, Replica
from pagetide_gateway.routing.routers import ExpectedTime


async def test_figures_that_are_no_numbers_do_not_end_the_watch_over_others(start_replicas, start_gateway, until):
    odd, bad = await start_replicas(2)
    asked = 0

    async def metrics() -> str:
        nonlocal asked
        asked += 1
        return 'pagetide_kv_capacity_tokens{model_name="m"} NaN\npagetide_max_num_seqs{model_name="m"} +Inf\n'

    odd.metrics = metrics
    front = await start_gateway(odd, bad, stall_s=0.4, make_router=ExpectedTime)
    for i in range(4):  # the router compares the figures with what it has sent
        async with front.post({"model": "m", "prompt": str(i) * 1000}) as response:
            assert response.status == 200
    assert odd.requests
    seen = asked
    await until(lambda: asked >= seen + 2)  # the figures have been read
    bad.answer = odd.answer = hang
    async with asyncio.timeout(5), front.post({"model": "m", "stream": True}) as response:
        assert response.status == 502


@pytest.mark.parametrize(
    ("size", "running"),
    [pytest.param(1 << 20, 3, id="large"), pytest.param(5 << 20, None, id="too large: as if it could not be read")],
)
async def test_metrics_have_a_bound(size, running, start_replicas, start_gateway, until):
    (replica,) = await start_replicas(1)
    asked = 0

    async def metrics() -> str:
        nonlocal asked
        asked += 1
        return 'pagetide_requests_running{model_name="m"} 3\n' + "#" * size

    replica.metrics = metrics
    front = await start_gateway(replica, stall_s=0.4)
    await until(lambda: asked >= 3)
    ((_, known),) = front.registry.replicas()
    assert (known.figures and known.figures.running) == running


async def test_a_list_of_models_has_a_bound(start_replicas, start_gateway, until):
    (replica,) = await start_replicas(1)
    replica.models = ["m", "x" * (5 << 20)]
    front = await start_gateway()
    front.registry.put("m", {replica.name: replica.url})
    ((_, known),) = front.registry.replicas()
    await until(lambda: known.health.is_told)
    assert known.health == Health(reason="its list of models: an answer of more than 4 MiB", is_told=True)


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


async def test_one_that_takes_requests_and_hangs_is_left_for_another(start_replicas, start_gateway):
    """Its health checks are good all the while."""
    bad, good = await start_replicas(2)
    bad.answer = hang
    front = await start_gateway(bad, good, stall_s=0.4)
    async with asyncio.timeout(5), front.post({"model": "m", "stream": True}) as response:
        assert (response.status, response.headers["x-pagetide-replica"]) == (200, good.name)
    for _ in range(4):
        async with asyncio.timeout(2), front.post({"model": "m", "stream": True}) as response:
            assert response.headers["x-pagetide-replica"] == good.name
    assert bad.cancelled.is_set()


async def test_a_stream_whose_replica_hangs_ends_with_an_error(start_replicas, start_gateway):
    (bad,) = await start_replicas(1)

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        return await hang(request)

    bad.answer = answer
    front = await start_gateway(bad, stall_s=0.4)
    async with asyncio.timeout(5), front.post({"model": "m", "stream": True}) as response:
        events = (await response.text()).removesuffix("\n\n").split("\n\n")
    assert events[0] == "data: 1"
    assert json.loads(events[1].removeprefix("data: "))["error"]["code"] == "upstream_failed"
    assert events[2] == "data: [DONE]"


async def test_one_that_works_in_silence_is_left_in_peace(start_replicas, start_gateway):
    """A long answer that is no stream shows in nothing but the counters of its replica."""
    (busy,) = await start_replicas(1)
    steps = 0

    async def metrics() -> str:
        nonlocal steps
        steps += 1
        return f'pagetide_engine_steps_total{{model_name="m"}} {steps}\n'

    async def answer(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(1.5)
        return web.json_response({})

    busy.answer, busy.metrics = answer, metrics
    front = await start_gateway(busy, stall_s=0.4)
    async with front.post({"model": "m", "stream": True}) as response:
        assert response.status == 200
    assert await front.metric('pagetide_gateway_ejections_total{model_name="m"}') == 0


@pytest.mark.parametrize(
    ("known", "limit"),
    [
        pytest.param({"has_counters": True}, 60, id="it knows nothing of what it was sent"),
        pytest.param({"has_counters": True, "says_busy": True}, 180, id="it says that it is at work"),
        pytest.param({"streams": 2}, 60, id="its streams would show work"),
        pytest.param({}, 600, id="nothing would: a long answer is not held against it"),
    ],
)
def test_stall_limit(known, limit):
    assert stall_limit(Replica("a", "", **known), 60) == limit


def test_figures_of_a_server_and_of_vllm():
    ours = """# HELP pagetide_requests_running x
pagetide_requests_running{model_name="m"} 3.0
pagetide_requests_waiting{model_name="m"} 2.0
pagetide_kv_capacity_tokens{model_name="m"} 4096.0
pagetide_prefix_cache_query_tokens_total{model_name="m"} 100.0
pagetide_prefix_cache_hit_tokens_total{model_name="m"} 40.0
pagetide_engine_steps_total{model_name="m"} 17.0
pagetide_request_queue_seconds_bucket{le="0.1",model_name="m"} 9.0
"""
    figures, work = parse(ours)
    assert (figures.running, figures.waiting, figures.capacity_tokens) == (3, 2, 4096)
    assert (figures.query_tokens, figures.hit_tokens, figures.max_running, work) == (100, 40, None, 17)
    figures, work = parse('vllm:num_requests_running{engine="0"} 5\nvllm:generation_tokens_total 7e3\n')
    assert (figures.running, work) == (5, 7000)
    assert parse("<html>")[1] is None


def test_figures_of_several_engines_are_added_and_those_that_are_none_left_out():
    text = """vllm:num_requests_running{engine="0"} 5
vllm:num_requests_running{engine="1"} 7
vllm:num_requests_waiting{engine="0"} NaN
pagetide_kv_capacity_tokens +Inf
"""
    figures, work = parse(text)
    assert (figures.running, figures.waiting, figures.capacity_tokens, work) == (12, None, None, None)
