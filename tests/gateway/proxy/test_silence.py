"""Replicas that take connections and say nothing more: nobody waits in silence."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web

from pagetide_gateway.polling import health

from .failing import begin_stream


@pytest.fixture
def soon(monkeypatch):
    """A silent replica is given up on within a second."""
    monkeypatch.setattr(health, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(health, "READY_INTERVAL_S", 0.2)


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
