"""Faults of the gateway's own machine or code: no replica is blamed, no stream is cut, nothing dies unseen."""

from __future__ import annotations

import asyncio
import errno
import resource

import pytest
from aiohttp import web

from pagetide_gateway.polling.for_each import for_each_replica
from pagetide_gateway.replicas import upstream
from pagetide_gateway.replicas.registry import Registry
from pagetide_gateway.serving.app import Gateway
from pagetide_gateway.serving.server import GatewayServer, raise_file_limit


@pytest.fixture
def without_files(monkeypatch):
    """A switch: while it is on, no new socket can be made towards replicas."""
    make, is_on = upstream._make_socket, []

    def make_socket(address):
        if is_on:
            raise OSError(errno.EMFILE, "Too many open files")
        return make(address)

    monkeypatch.setattr(upstream, "_make_socket", make_socket)
    return is_on


async def test_a_gateway_without_file_descriptors_cuts_no_stream_and_blames_nobody(
    without_files, start_replicas, start_gateway, until
):
    (replica,) = await start_replicas(1)
    may_go_on = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "connection": "close"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await may_go_on.wait()
        await response.write(b"data: [DONE]\n\n")
        return response

    plain, replica.answer = replica.answer, answer
    front = await start_gateway(replica)
    (seen,) = front.registry.find("m").replicas.values()
    async with front.post({"model": "m", "stream": True}) as response:
        await response.content.readuntil(b"\n\n")
        without_files.append(True)
        await until(lambda: not seen.health.ready)  # polls fail, again and again
        assert "Too many open files" in seen.health.reason
        async with front.post({"model": "m"}) as refused:
            assert refused.status == 503
        assert seen.standing.failures == 0
        may_go_on.set()
        assert await response.read() == b"data: [DONE]\n\n"
    replica.answer = plain
    without_files.clear()
    await until(lambda: seen.health.ready)


async def test_work_that_fails_for_one_replica_goes_on_for_all(monkeypatch, until):
    monkeypatch.setattr("pagetide_gateway.polling.for_each._PAUSE_S", 0.01)
    registry, rounds = Registry(), {"a": 0, "b": 0}
    registry.put("m", {"a": "http://1", "b": "http://2"})

    async def work(service, replica) -> float:
        rounds[replica.name] += 1
        if replica.name == "a":
            raise ValueError("cannot convert float NaN to integer")
        return 0.01

    task = asyncio.create_task(for_each_replica(registry, work, 0.01))
    await until(lambda: min(rounds.values()) > 3)
    task.cancel()


async def test_a_background_task_that_dies_ends_the_process_rather_than_leave_it_blind():
    gateway = Gateway(Registry())
    server = GatewayServer(gateway, drain_s=1)

    async def die() -> None:
        raise RuntimeError("a fault in the gateway")

    gateway._tasks.append(asyncio.create_task(die()))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="a fault in the gateway"):
        await server.on_tick(1)


def test_the_process_may_have_as_many_files_as_the_machine_allows():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
