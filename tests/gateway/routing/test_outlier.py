"""Replicas that say they are well and fail are set aside, and come back."""

from __future__ import annotations

import asyncio
import dataclasses
import time

from aiohttp import web

from pagetide_gateway.routing import outlier
from pagetide_gateway.routing.outlier import FAILURES_TO_EJECT, FIRST_EJECTION_S, GOOD, after_failure, takes_part


def after(count: int, now: float = 0.0, standing=GOOD):
    for _ in range(count):
        standing = after_failure(standing, now)
    return standing


def test_a_few_failures_are_forgiven():
    assert takes_part(after(FAILURES_TO_EJECT - 1), 0.0, 5)


def test_more_set_it_aside_and_then_on_trial():
    standing = after(FAILURES_TO_EJECT)
    assert not takes_part(standing, FIRST_EJECTION_S - 0.1, 0)
    assert takes_part(standing, FIRST_EJECTION_S, 0)
    assert not takes_part(standing, FIRST_EJECTION_S, 1), "one request at a time"


def test_failures_of_requests_from_before_do_not_add_up():
    standing = after(FAILURES_TO_EJECT)
    assert after(9, 0.1, standing) == standing


def test_each_time_it_is_longer_up_to_a_bound():
    standing, pauses, now = GOOD, [], 0.0
    for _ in range(6):
        standing = after_failure(standing, now, is_stall=True)
        pauses.append(standing.until - now)
        now = standing.until
    assert pauses == [5, 10, 20, 40, 60, 60]


async def answer_500(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "CUDA error"}}, status=500)


def end_its_pause(replica):
    """As if the time had passed: a test that waited would say something about the machine."""
    now = time.monotonic()
    assert replica.standing.until > now
    replica.standing = dataclasses.replace(replica.standing, until=now)


async def test_one_that_answers_500_is_set_aside_and_comes_back(start_replicas, start_gateway, monkeypatch):
    monkeypatch.setattr(outlier, "FIRST_EJECTION_S", 60)
    bad, good = await start_replicas(2)
    plain, bad.answer = bad.answer, answer_500
    front = await start_gateway(bad, good)
    statuses = []
    for _ in range(12):
        async with front.post({"model": "m"}) as response:
            statuses.append(response.status)
    assert statuses.count(500) == FAILURES_TO_EJECT
    assert await front.metric('pagetide_gateway_ejections_total{model_name="m"}') == 1
    assert await front.metric('pagetide_gateway_replicas{model_name="m",state="ejected"}') == 1
    bad.answer = plain
    end_its_pause(front.registry.find("m").replicas[bad.name])
    answered_by = set()
    for _ in range(4):
        async with front.post({"model": "m"}) as response:
            answered_by.add(response.headers["x-pagetide-replica"])
    assert answered_by == {bad.name, good.name}


async def test_where_all_fail_all_are_tried(start_replicas, start_gateway):
    replicas = await start_replicas(2)
    for replica in replicas:
        replica.answer = answer_500
    front = await start_gateway(*replicas)
    for _ in range(2 * FAILURES_TO_EJECT + 4):
        async with front.post({"model": "m"}) as response:
            assert response.status == 500
    assert await front.metric('pagetide_gateway_ejections_total{model_name="m"}') == 2
    assert all(len(r.requests) > FAILURES_TO_EJECT for r in replicas)


async def break_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b"data: 1\n\n")
    await asyncio.sleep(0.02)
    request.transport.abort()
    return response


async def test_one_that_breaks_every_stream_is_set_aside_and_longer_each_time(
    start_replicas, start_gateway, monkeypatch
):
    """The head of an answer that breaks off is no success."""
    monkeypatch.setattr(outlier, "FIRST_EJECTION_S", 30)
    (bad,) = await start_replicas(1)
    bad.answer = break_off
    front = await start_gateway(bad)
    (replica,) = front.registry.find("m").replicas.values()

    async def ask() -> None:
        async with front.post({"model": "m", "stream": True}) as response:
            assert '"error"' in await response.text()

    for _ in range(FAILURES_TO_EJECT):
        await ask()
    assert replica.standing.ejections == 1
    end_its_pause(replica)
    before = time.monotonic()
    await ask()  # its trial
    assert replica.standing.ejections == 2
    assert replica.standing.until >= before + 60


async def test_a_refusal_of_what_a_client_wrote_ends_no_trial(start_replicas, start_gateway):
    (replica,) = await start_replicas(1)

    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no such field"}}, status=400)

    replica.answer = refuse
    front = await start_gateway(replica)
    (seen,) = front.registry.find("m").replicas.values()
    seen.standing = after(FAILURES_TO_EJECT - 1)
    async with front.post({"model": "m"}) as response:
        assert response.status == 400
    assert seen.standing == after(FAILURES_TO_EJECT - 1)


async def test_a_client_that_does_not_read_is_not_held_against_the_replica(start_replicas, start_gateway, until):
    (replica,) = await start_replicas(1)
    piece, done = b"data: " + b"x" * 100_000 + b"\n\n", asyncio.Event()
    unread = 0

    async def much(request: web.Request) -> web.StreamResponse:
        nonlocal unread
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(400):
            await response.write(piece)
            unread += 1
        await response.write(b"data: [DONE]\n\n")
        done.set()
        return response

    replica.answer = much
    front = await start_gateway(replica, stall_s=0.4)
    async with front.post({"model": "m", "stream": True}) as response:
        before = -1
        while before != unread:  # until all buffers are full
            before = unread
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        assert not done.is_set(), "the test must be larger than the buffers"
        text = await response.text()
    assert text.endswith("data: [DONE]\n\n")
    assert await front.metric('pagetide_gateway_ejections_total{model_name="m"}') == 0
