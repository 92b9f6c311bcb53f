"""The local runner's parts at work, with no replica that would load anything."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import sys
from pathlib import Path

import pytest

from pagetide_gateway.replicas.registry import Registry
from pagetide_gateway.replicas.replica import Health
from pagetide_gateway.serving.server import GatewayServer
from pagetide_operator.local.runner import Runner
from pagetide_operator.local.service import LocalService
from pagetide_operator.local.show import Screen
from pagetide_operator.local.slot import Slot
from pagetide_operator.local.supervisor import Supervisor
from pagetide_spec.web import listen

SERVICE = LocalService("a", "default", "a", "hf://o/n", "o/n", 1, "spec.replicas", 5.0)


class FakeProcess:
    """A process that ends when the test says so."""

    pid = 1 << 30

    def __init__(self):
        self.signals, self.has_ended = [], asyncio.Event()

    def send_signal(self, number):
        self.signals.append(number)

    async def wait(self):
        await self.has_ended.wait()
        return 0


async def test_a_replica_that_drains_gets_no_second_sigterm():
    supervisor = Supervisor([SERVICE], Registry(), Path("logs"))
    process = FakeProcess()
    slot = supervisor.slots["a-0"] = Slot(SERVICE, "a-0", Path("log"), process=process)
    draining = asyncio.create_task(supervisor._stop(slot))
    await asyncio.sleep(0)
    await supervisor.close()
    assert process.signals == [signal.SIGTERM]
    process.has_ended.set()
    await draining


async def test_a_log_that_cannot_be_written_is_the_replicas_trouble_not_the_runners(tmp_path):
    (tmp_path / "a-0.log").mkdir()
    supervisor = Supervisor([SERVICE], Registry(), tmp_path)
    await supervisor.reconcile()
    assert supervisor.slots["a-0"].reason.startswith("cannot be started: ")
    await supervisor.close()


def test_a_reason_is_logged_once_for_all_replicas_that_cannot_start(caplog):
    service = dataclasses.replace(SERVICE, replicas=3)
    supervisor = Supervisor([service], Registry(), Path("logs"))
    supervisor.slots = {name: Slot(service, name, Path(name)) for name in ("a-0", "a-1", "a-2")}
    for name in ("a-0", "a-1", "a-1", "a-2", "a-0"):
        supervisor._note_failure(supervisor.slots[name], "no room" if name == "a-2" else "no hub")
    supervisor.slots["a-0"].was_ready = supervisor.slots["a-1"].was_ready = True
    supervisor._note_failure(supervisor.slots["a-0"], "no hub")
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "a-0: no hub",
        "a-1: failed for the same reason as a-0",
        "a-1: failed for the same reason again",
        "a-2: no room",
        "a-0: failed for the same reason again",
        "a-0: no hub",
    ]
    assert {slot.reason for slot in supervisor.slots.values()} == {"no hub", "no room"}


async def test_a_reason_that_names_each_replicas_own_port_is_one_reason(caplog, tmp_path):
    def command(service, port):
        return [sys.executable, "-c", f"import sys; sys.exit('pagetide serve: --port: {port}: is taken')"]

    supervisor = Supervisor([dataclasses.replace(SERVICE, replicas=2)], Registry(), tmp_path, command)
    await supervisor.reconcile()
    async with asyncio.timeout(20):
        while sum(bool(slot.failures) for slot in supervisor.slots.values()) < 2:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
    await supervisor.close()
    first, second = [record.getMessage() for record in caplog.records]
    assert "exit code 1: pagetide serve: --port: " in first
    assert ": failed for the same reason as " in second
    assert len({slot.reason for slot in supervisor.slots.values()}) == 2, "each keeps its own"


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        pytest.param("exit code 1: port 8001 is taken", "exit code 1: port 10 is taken", True, id="two ports"),
        pytest.param("exit code 1", "exit code 3", False, id="two exit codes"),
        pytest.param("exit code 130: x", "exit code 143: x", False, id="two exit codes of signals"),
        pytest.param("no hub", "no room", False, id="two reasons"),
    ],
)
def test_when_two_reasons_are_one(one, other, is_same, caplog):
    supervisor = Supervisor([SERVICE], Registry(), Path("logs"))
    supervisor.slots = {name: Slot(SERVICE, name, Path(name)) for name in ("a-0", "a-1")}
    supervisor._note_failure(supervisor.slots["a-0"], one)
    supervisor._note_failure(supervisor.slots["a-1"], other)
    assert ("the same reason" in caplog.text) == is_same


async def test_requests_for_a_service_whose_every_replica_is_broken_are_not_held(tmp_path):
    registry = Registry()
    supervisor = Supervisor([SERVICE], registry, tmp_path, lambda service, port: [sys.executable, "-c", "exit(2)"])

    async def wake(): ...

    supervisor.set_waker(SERVICE, wake)
    assert registry.find("a").holds
    await supervisor.reconcile()
    async with asyncio.timeout(20):
        while not supervisor.slots["a-0"].broken:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
    assert registry.find("a").broken == f"a-0: exit code 2 (log: {tmp_path / 'a-0.log'})"
    assert not registry.find("a").holds
    supervisor.grow(SERVICE, 1)
    supervisor._route(SERVICE)
    assert registry.find("a").holds, "another may start"
    await supervisor.close()


async def test_an_unexpected_error_of_a_watcher_is_told(caplog):
    supervisor = Supervisor([SERVICE], Registry(), Path("logs"))

    async def fail():
        raise ValueError("out of luck")

    supervisor._watch(fail())
    async with asyncio.timeout(5):
        while supervisor._watchers:  # noqa: ASYNC110 - it empties itself
            await asyncio.sleep(0)
    assert "out of luck" in caplog.text


def make_runner(listener, logs, replicas):
    service = dataclasses.replace(SERVICE, replicas=replicas)
    return Runner([service], listener, logs, lambda service, port: [], 8, Screen("text"))


async def test_a_log_is_read_only_while_a_replica_starts_and_says_nothing_by_itself(monkeypatch, tmp_path):
    read = []
    monkeypatch.setattr("pagetide_operator.local.runner.last_line", lambda log: read.append(log.name) or "loading")
    with listen("127.0.0.1", 0) as listener:
        runner = make_runner(listener, tmp_path, replicas=4)
        slots = runner._supervisor.slots
        for name in ("a-0", "a-1", "a-2", "a-3"):
            slots[name] = Slot(SERVICE, name, tmp_path / name, process=FakeProcess())
        slots["a-1"].broken, slots["a-1"].reason, slots["a-2"].is_stopping = True, "no hub", True
        runner._supervisor._route(SERVICE)
        runner._supervisor.routed(slots["a-3"]).health = Health(ready=True)
        (service,) = runner.status()
    assert [(pod["state"], pod["message"]) for pod in service["pods"]] == [
        ("starting", "loading"), ("broken", "no hub"), ("draining", ""), ("ready", ""),
    ]  # fmt: skip
    assert read == ["a-0"]


@pytest.mark.parametrize(
    ("ready_at", "is_stopping", "leaves"),
    [
        pytest.param(1.0, False, True, id="it finishes what it has"),
        pytest.param(1.0, True, False, id="it was told to end"),
        pytest.param(None, False, False, id="it answers no more"),
    ],
)
async def test_a_replica_that_drains_leaves_until_it_is_told_to_end(ready_at, is_stopping, leaves, tmp_path):
    slot = Slot(SERVICE, "a-0", tmp_path / "a-0", process=FakeProcess())
    slot.ready_at, slot.is_stopping, slot.draining_at = ready_at, is_stopping, 2.0
    with listen("127.0.0.1", 0) as listener:
        told = make_runner(listener, tmp_path, replicas=1)._replica_status(slot)
    assert (told.state, told.leaves) == ("draining", leaves)


async def test_a_gateway_that_ends_by_itself_is_a_failure(monkeypatch, capsys, tmp_path):
    async def end_at_once(self, sockets):
        return

    monkeypatch.setattr(GatewayServer, "serve", end_at_once)
    with listen("127.0.0.1", 0) as listener:
        runner = make_runner(listener, tmp_path, replicas=0)
        assert await asyncio.wait_for(runner.run(), 10) == 1
    assert "the gateway has ended by itself" in capsys.readouterr().err


@pytest.fixture(autouse=True)
def _keep_signal_handlers():
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
