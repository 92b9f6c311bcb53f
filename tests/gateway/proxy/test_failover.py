"""Replicas that die or refuse before a client has a byte: another answers, or the client gets an error."""

from __future__ import annotations

import pytest
from aiohttp import web

from .failing import answer_429, answer_503, die_at_once, die_in_small_body


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
