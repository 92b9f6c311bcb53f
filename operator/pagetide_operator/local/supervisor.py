"""Keeps one process running for each desired replica, and the gateway's registry true about them.

Level-triggered: every pass compares what is desired with what runs and acts on the difference (`plan`), so a missed or
doubled event does no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from pagetide_gateway.replicas.registry import Registry, Wake
from pagetide_gateway.replicas.registry import Replica as RoutedReplica

from . import process as os_process
from .plan import failures_after, is_broken, plan, restart_delay
from .replica_log import last_line
from .service import LocalService, replica_command
from .slot import Slot

log = logging.getLogger(__name__)

ReplicaCommand = Callable[[LocalService, int], list[str]]
PASS_S = 0.2
# Beyond the drain time, for the server to end by itself.
KILL_MARGIN_S = 5.0
# Of a reason: all numbers but the exit code, such as a port, a time, a process id.
_NUMBERS = re.compile(r"(?<!exit code )(?<!\d)\d+")


class Supervisor:
    """`run` keeps things so until `close` ends every process.

    `command` makes a replica's command line; tests give one of their own.
    """

    def __init__(
        self,
        services: Iterable[LocalService],
        registry: Registry,
        logs: Path,
        command: ReplicaCommand = replica_command,
    ) -> None:
        self.services = {service.name: service for service in services}
        self.slots: dict[str, Slot] = {}
        self._registry, self._logs, self._command = registry, logs, command
        self._changed = asyncio.Event()
        self._is_closing = False
        self._passing = asyncio.Lock()
        self._watchers: set[asyncio.Task[None]] = set()
        self._wanted = {s.name: [f"{s.name}-{i}" for i in range(s.replicas)] for s in self.services.values()}
        self._wakers: dict[str, Wake] = {}
        for service in self.services.values():
            self._route(service)

    def slots_of(self, service: LocalService) -> list[Slot]:
        """The replicas of one service."""
        return [slot for slot in self.slots.values() if slot.service.name == service.name]

    def wanted(self, service: LocalService) -> list[str]:
        """Names of the replicas that there should be."""
        return self._wanted[service.name]

    def count_wanted(self) -> int:
        """Replicas that there should be, of all services."""
        return sum(map(len, self._wanted.values()))

    def set_waker(self, service: LocalService, wake: Wake) -> None:
        """Requests for a service without a ready replica are held from now on; `wake` is called where it has none."""
        self._wakers[service.name] = wake
        self._route(service)

    def grow(self, service: LocalService, count: int) -> None:
        """Want `count` replicas more."""
        wanted = self._wanted[service.name]
        taken = {*wanted, *self.slots}
        free = (name for i in itertools.count() if (name := f"{service.name}-{i}") not in taken)
        wanted += list(itertools.islice(free, count))
        self._changed.set()

    def remove(self, service: LocalService, name: str) -> None:
        """Do not want this replica any more: it is asked to end."""
        self._wanted[service.name].remove(name)
        self._changed.set()

    def set_draining(self, slot: Slot, since: float | None) -> None:
        """Send a replica nothing new, or (None) send it requests again."""
        slot.draining_at = since
        if routed := self.routed(slot):
            routed.draining = since is not None

    def routed(self, slot: Slot) -> RoutedReplica | None:
        """The gateway's view of a replica that runs."""
        service = self._registry.find(slot.service.model_name)
        return service.replicas.get(slot.name) if service else None

    async def run(self) -> None:
        """Pass after pass, at each change and at least every PASS_S seconds."""
        while not self._is_closing:
            self._changed.clear()
            async with self._passing:
                await self.reconcile()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), PASS_S)

    async def reconcile(self) -> None:
        """One pass."""
        for slot in self.slots.values():
            routed = self.routed(slot)
            is_ready = routed is not None and routed.health.ready
            slot.was_ready = slot.was_ready or is_ready
            slot.ready_at = (slot.ready_at or time.time()) if is_ready else None
        desired = {name: s for s in self.services.values() for name in self._wanted[s.name]}
        # One that failed and is not wanted any more has no process whose end would be its own.
        self.slots = {n: s for n, s in self.slots.items() if n in desired or s.process or s.is_stopping}
        for action in plan(list(desired), [slot.seen() for slot in self.slots.values()], time.monotonic()):
            if action.do == "stop":
                self._watch(self._stop(self.slots[action.name]))
            else:
                slot = self.slots.get(action.name) or self._new_slot(desired[action.name], action.name)
                await self._start(slot)

    def _new_slot(self, service: LocalService, name: str) -> Slot:
        self.slots[name] = slot = Slot(service, name, self._logs / f"{name}.log")
        with contextlib.suppress(OSError):  # the start will report what is wrong with it
            slot.log.unlink()  # a log is about this run only
        return slot

    async def _start(self, slot: Slot) -> None:
        slot.started, slot.was_ready, slot.is_stopping = time.monotonic(), False, False
        slot.ready_at = slot.draining_at = None
        try:
            slot.port = os_process.free_port({s.port for s in self.slots.values()})
            command = self._command(slot.service, slot.port)
            slot.process = await os_process.spawn(command, slot.service.environment, slot.log)
        except OSError as error:
            self._note_failure(slot, f"cannot be started: {error}")
            return
        log.debug("%s: process %d on port %d", slot.name, slot.process.pid, slot.port)
        self._route(slot.service)
        self._watch(self._until_exit(slot, slot.process))

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._watchers.add(task)
        task.add_done_callback(self._watched)

    def _watched(self, task: asyncio.Task[None]) -> None:
        self._watchers.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("unexpected error", exc_info=error)

    async def _until_exit(self, slot: Slot, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        os_process.kill_group(process.pid)
        slot.process = None
        if slot.is_stopping:
            self.slots.pop(slot.name, None)
        else:
            self._ended(slot, code)
        self._route(slot.service)
        self._changed.set()

    def _ended(self, slot: Slot, code: int) -> None:
        routed = self.routed(slot)
        was_ready = slot.was_ready or (routed is not None and routed.health.ready)
        slot.broken = is_broken(code, was_ready)
        # The last line of a killed process is not why it exited.
        words = last_line(slot.log) if code >= 0 else ""
        self._note_failure(slot, os_process.describe_exit(code) + (f": {words}" if words else ""))

    def _note_failure(self, slot: Slot, reason: str) -> None:
        now = time.monotonic()
        slot.failures = failures_after(slot.failures, now - slot.started)
        slot.restart_at = now + restart_delay(slot.failures)
        said = self._once(slot, reason)
        slot.reason = reason
        if slot.broken:
            log.error("%s: %s; it is not started again", slot.name, said)
            return
        slot.restarts += 1
        log.warning("%s: %s; next start in %.1f s", slot.name, said, slot.restart_at - now)

    def _once(self, slot: Slot, reason: str) -> str:
        """The reason, or a word for it where a replica that has not been ready since failed for it: it may be long.

        Reasons that differ in numbers only are the same.
        """
        failing = [s for s in self.slots_of(slot.service) if s.failures and not s.was_ready]
        same = [s.name for s in failing if _NUMBERS.sub("", s.reason) == _NUMBERS.sub("", reason)]
        if slot.name in same:
            return "failed for the same reason again"
        return f"failed for the same reason as {same[0]}" if same else reason

    def _route(self, service: LocalService) -> None:
        """Tell the gateway which replicas there are."""
        running = [slot for slot in self.slots_of(service) if slot.process]
        replicas = {slot.name: slot.url for slot in running}
        wake, broken = self._wakers.get(service.name), self._broken(service)
        self._registry.put(service.model_name, replicas, wake=wake, broken=broken)

    def _broken(self, service: LocalService) -> str:
        """Why none of the replicas that there should be will ever start; empty where one may."""
        slots = [self.slots.get(name) for name in self._wanted[service.name]]
        reasons = [f"{s.name}: {s.reason} (log: {s.log})" for s in slots if s is not None and s.broken]
        return reasons[0] if reasons and len(reasons) == len(slots) else ""

    async def _stop(self, slot: Slot) -> None:
        if slot.is_stopping:
            return  # a second SIGTERM would cut the streams that the first one lets finish
        slot.is_stopping = True
        if routed := self.routed(slot):
            routed.draining = True
        if slot.process:
            await os_process.end(slot.process, slot.service.drain_seconds + KILL_MARGIN_S)

    async def close(self) -> None:
        """End every process and wait until all are gone: SIGTERM first, SIGKILL after the drain time."""
        self._is_closing = True
        self._changed.set()
        async with self._passing:
            pass  # a start under way has its process in its slot now
        await asyncio.gather(*(self._stop(slot) for slot in self.slots.values()))
        if self._watchers:
            await asyncio.wait(self._watchers)

    def kill(self) -> None:
        """SIGKILL every process; `close` returns soon after."""
        for slot in self.slots.values():
            if slot.process:
                os_process.kill_group(slot.process.pid)
