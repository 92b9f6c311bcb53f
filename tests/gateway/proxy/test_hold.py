"""Services that sleep: their requests wait, in bounded number and time, and wake them."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from pagetide_gateway.proxy import hold
from pagetide_gateway.proxy.hold import HoldLimits


class Sleeper:
    """A service at zero, whose replica comes when the test says so. `wakes` counts how often it was asked for."""

    def __init__(self, front, replica):
        self.front, self.replica, self.wakes = front, replica, 0
        self.set()

    def set(self, *replicas, broken=""):
        self.front.registry.put("m", {r.name: r.url for r in replicas}, wake=self._wake, broken=broken)

    async def _wake(self):
        self.wakes += 1

    def ask(self):
        return asyncio.create_task(self.front.client.post(self.front.url + "/v1/completions", json={"model": "m"}))

    @property
    def held(self):
        return self.front.registry.find("m").held


@pytest.fixture
def asleep(start_replicas, start_gateway):
    async def start(requests: int = 256, seconds: float = 10, size: int = 1 << 20) -> Sleeper:
        (replica,) = await start_replicas(1)
        return Sleeper(await start_gateway(hold=HoldLimits(requests, seconds, size)), replica)

    return start


async def test_a_hundred_first_requests_wait_for_one_replica_and_are_all_answered(asleep, until):
    sleeper = await asleep()
    asking = [sleeper.ask() for _ in range(100)]
    await until(lambda: sleeper.held == 100)
    assert await sleeper.front.metric('pagetide_gateway_requests_held{model_name="m"}') == 100
    assert sleeper.wakes == 1, "one call, however many wait"
    sleeper.set(sleeper.replica)
    assert [(await task).status for task in asking] == [200] * 100
    assert sleeper.held == 0
    assert await sleeper.front.metric('pagetide_gateway_held_total{model_name="m",outcome="released"}') == 100


async def test_it_is_asked_for_again_only_after_a_while_and_not_once_it_loads(asleep, until, monkeypatch):
    monkeypatch.setattr(hold, "WAKE_INTERVAL_S", 0.2)
    sleeper = await asleep()
    sleeper.replica.ready = 503
    task = sleeper.ask()
    await until(lambda: sleeper.wakes == 3)
    sleeper.set(sleeper.replica)  # it loads
    await asyncio.sleep(0.1)
    before = sleeper.wakes
    await asyncio.sleep(0.5)
    assert sleeper.wakes == before
    sleeper.replica.ready = 200
    assert (await task).status == 200


async def test_who_waits_too_long_is_told_when_to_come_back(asleep):
    sleeper = await asleep(seconds=0.2)
    response = await sleeper.ask()
    assert response.status == 503
    assert int(response.headers["retry-after"]) > 0
    assert (await response.json())["error"]["code"] == "no_ready_replica"


@pytest.mark.parametrize(
    "limit",
    [pytest.param({"requests": 2}, id="in number"), pytest.param({"size": 2 * len('{"model": "m"}')}, id="in bytes")],
)
async def test_one_too_many_is_503_and_never_429(limit, asleep, until):
    sleeper = await asleep(**limit)
    held = [sleeper.ask() for _ in range(2)]
    await until(lambda: sleeper.held == 2)
    response = await sleeper.ask()
    assert (response.status, response.headers["retry-after"]) == (503, "5")
    sleeper.set(sleeper.replica)
    assert [(await task).status for task in held] == [200] * 2


async def test_an_empty_pool_that_nobody_wakes_is_503_at_once(start_gateway):
    front = await start_gateway()
    front.registry.put("m", {})
    async with asyncio.timeout(2), front.post({"model": "m"}) as response:
        assert response.status == 503
        assert int(response.headers["retry-after"]) > 0


async def test_a_service_that_nothing_but_a_change_can_start_holds_nobody(asleep, until):
    sleeper = await asleep()
    task = sleeper.ask()
    await until(lambda: sleeper.held == 1)
    told = "InvalidSpec: spec.engine.maxNumSeqs: 0: must be at least 1"
    sleeper.set(broken=told)
    for response in (await task, await sleeper.ask()):
        assert response.status == 503
        assert "retry-after" not in response.headers, "it is of no use to ask again"
        error = (await response.json())["error"]
        assert (error["code"], error["message"]) == ("no_ready_replica", f"No replica of `m` can start: {told}")
    sleeper.set()
    task = sleeper.ask()
    await until(lambda: sleeper.held == 1)
    sleeper.set(sleeper.replica)
    assert (await task).status == 200


async def test_who_leaves_while_waiting_frees_the_place(asleep, until):
    sleeper = await asleep(requests=1)
    task = sleeper.ask()
    await until(lambda: sleeper.held == 1)
    task.cancel()
    await until(lambda: sleeper.held == 0)
    again = sleeper.ask()
    sleeper.set(sleeper.replica)
    assert (await again).status == 200
    assert len(sleeper.replica.requests) == 1


async def test_those_who_wait_for_a_service_that_is_removed_are_told(asleep, until):
    sleeper = await asleep()
    task = sleeper.ask()
    await until(lambda: sleeper.held == 1)
    sleeper.front.registry.remove("m")
    assert (await task).status == 503


async def test_a_wake_that_fails_is_tried_again(asleep, until, monkeypatch):
    monkeypatch.setattr(hold, "WAKE_INTERVAL_S", 0.1)
    sleeper = await asleep()
    attempts = 0

    async def fail():
        nonlocal attempts
        attempts += 1
        raise OSError("no API server")

    sleeper.front.registry.put("m", {}, wake=fail)
    task = sleeper.ask()
    await until(lambda: attempts >= 2)
    sleeper.set(sleeper.replica)
    assert (await task).status == 200


async def test_a_wake_that_hangs_holds_up_nobody(asleep, until):
    """The replica may come all the same: another gateway has asked for it."""
    sleeper = await asleep()

    async def hang():
        await asyncio.Event().wait()

    sleeper.front.registry.put("m", {}, wake=hang)
    task = sleeper.ask()
    await until(lambda: sleeper.held == 1)
    sleeper.front.registry.put("m", {sleeper.replica.name: sleeper.replica.url}, wake=hang)
    async with asyncio.timeout(3):
        assert (await task).status == 200


async def test_a_full_replica_stays_ready_for_others(start_replicas, start_gateway):
    """One full and one that leaves: the client hears of the full one, and the next client is sent there."""
    full, leaving = await start_replicas(2)
    plain = full.answer

    async def answer_429(request):
        return web.json_response({"error": {"message": "full"}}, status=429)

    async def answer_503(request):
        return web.json_response({"error": {"message": "draining"}}, status=503)

    full.answer, leaving.answer = answer_429, answer_503
    front = await start_gateway(full, leaving)
    sleeper = Sleeper(front, full)
    sleeper.set(full, leaving)
    async with asyncio.timeout(2):
        response = await sleeper.ask()
    assert response.status == 429
    assert int(response.headers["retry-after"]) > 0
    full.answer = plain
    assert (await sleeper.ask()).headers["x-pagetide-replica"] == full.name


async def test_a_gateway_that_ends_holds_nobody(asleep, until):
    sleeper = await asleep()
    task = sleeper.ask()
    await until(lambda: sleeper.held == 1)
    sleeper.front.server.stop()
    assert (await task).status == 503
    await asyncio.wait_for(sleeper.front.serving, 5)


async def test_several_gateways_that_hold_for_one_service_all_go_on(start_replicas, start_gateway, until):
    """Each asks for it by itself, and what one does takes nothing from the others."""
    (replica,) = await start_replicas(1)
    sleepers = [Sleeper(await start_gateway(), replica) for _ in range(3)]
    tasks = [sleeper.ask() for sleeper in sleepers for _ in range(5)]
    await until(lambda: all(s.held == 5 and s.wakes == 1 for s in sleepers))
    for sleeper in sleepers:
        sleeper.set(replica)
    assert [(await task).status for task in tasks] == [200] * 15


async def test_one_that_leaves_just_then_hands_its_requests_to_the_next(asleep, until):
    """Scaled to zero while a request was on its way: the replica refuses it, and the service wakes for it."""
    sleeper = await asleep()
    plain = sleeper.replica.answer

    async def refuse(request):
        sleeper.replica.ready = 503
        return web.json_response({"error": {"message": "draining"}}, status=503)

    sleeper.replica.answer = refuse
    sleeper.set(sleeper.replica)
    await until(lambda: sleeper.front.registry.find("m").available() != [])
    task = sleeper.ask()
    await until(lambda: sleeper.held == 1)
    sleeper.set()
    await until(lambda: sleeper.wakes == 1)
    sleeper.replica.answer, sleeper.replica.ready = plain, 200
    sleeper.set(sleeper.replica)
    assert (await task).status == 200


async def test_one_that_says_ready_and_refuses_ends_the_waiting_in_time(asleep, until):
    sleeper = await asleep(seconds=1)

    async def refuse(request):
        return web.json_response({"error": {"message": "draining"}}, status=503)

    sleeper.replica.answer = refuse
    sleeper.set(sleeper.replica)
    async with asyncio.timeout(5):
        assert (await sleeper.ask()).status == 503
    assert len(sleeper.replica.requests) < 10, "it is asked again only when a poll has found it ready"
