"""Gateway, supervisor and the person at the terminal, brought together in one event loop."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from pagetide_gateway.replicas.registry import Registry
from pagetide_gateway.serving.app import Gateway
from pagetide_gateway.serving.server import GatewayServer
from pagetide_spec.names import EXIT_SETTING

from ..autoscaling.windows import SCRAPE_S
from .replica_log import last_line
from .scaler import LocalScaler
from .service import LocalService
from .show import Screen
from .slot import Slot
from .status import PATH_STATUS, ReplicaStatus, State, changes, describe, has_settled, is_hopeless, summary
from .supervisor import ReplicaCommand, Supervisor

_LOOK_S = 0.1
EXIT_FAILED = 1


class Runner:
    """One run of `pagetide up` on a bound socket."""

    def __init__(
        self,
        services: Sequence[LocalService],
        listener: socket.socket,
        logs: Path,
        command: ReplicaCommand,
        max_replicas: int,
        screen: Screen,
        scrape_s: float = SCRAPE_S,
    ) -> None:
        registry = Registry()
        self._supervisor = Supervisor(services, registry, logs, command)
        self._screen = screen
        self._scaler = LocalScaler(self._supervisor, max_replicas, screen.news, scrape_s)
        gateway = Gateway(registry, extra_routes=[Route(PATH_STATUS, self._serve_status)])
        drain_s = max((s.drain_seconds for s in services), default=0.0)
        self._server = GatewayServer(gateway, drain_s=drain_s)
        self._listener, self._logs = listener, logs
        self._created = time.time()
        self._ending = asyncio.Event()

    async def run(self) -> int:
        """Until a signal comes, or it is certain that no service can ever be ready.

        Returns:
            The exit code. By then every process has ended.
        """
        self._take_signals()
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        supervising = asyncio.create_task(self._supervisor.run())
        scaling = asyncio.create_task(self._scaler.run())
        telling = asyncio.create_task(self._tell())
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait({serving, supervising, telling, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()
            scaling.cancel()
            await asyncio.gather(scaling, return_exceptions=True)
            if not telling.done():
                telling.cancel()
            self._server.stop()
            await self._supervisor.close()
        await serving
        await supervising
        if self._ending.is_set():
            return 0
        if telling.done() and not telling.cancelled():
            return telling.result()
        self._screen.note("pagetide up: the gateway has ended by itself", logging.ERROR)
        return EXIT_FAILED

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self._ending.is_set():
            self._server.stop(now=True)
            self._supervisor.kill()
            return
        self._ending.set()
        self._screen.note("stopping; requests under way may finish (once more: at once)")

    async def _tell(self) -> int:
        """Progress, then the table and the address, then each change; returns when all hope is lost."""
        self._screen.note(f"logs of replicas: {self._logs}")
        with self._screen.progress("starting") as progress:
            while not all(map(has_settled, services := self.status())):
                progress.update(summary(services))
                await asyncio.sleep(_LOOK_S)
        self._screen.table(services)
        if not is_hopeless(services):
            self._screen.news(f"listening on {url_of(self._listener)}")
        with self._screen.live(any(s.autoscaling for s in self._supervisor.services.values())):
            while not is_hopeless(services):
                await asyncio.sleep(_LOOK_S)
                before, services = services, self.status()
                for line in changes(before, services):
                    self._screen.news(line)
                self._screen.update(services)
        self._screen.note("pagetide up: no service can ever be ready", logging.ERROR)
        return EXIT_SETTING

    def status(self) -> list[dict[str, Any]]:
        """Every service as `/status` reports it."""
        now = time.time()
        return [
            describe(
                service,
                [self._replica_status(s) for s in self._supervisor.slots_of(service)],
                len(self._supervisor.wanted(service)),
                self._created,
                now,
                self._scaler.describe(service.name),
            )
            for service in self._supervisor.services.values()
        ]

    def _replica_status(self, slot: Slot) -> ReplicaStatus:
        state, message = self._state(slot)
        pid = slot.process.pid if slot.process else None
        leaves = state == "draining" and slot.ready_at is not None and not slot.is_stopping
        return ReplicaStatus(slot.name, state, message, slot.url, pid, slot.restarts, str(slot.log), leaves)

    def _state(self, slot: Slot) -> tuple[State, str]:
        """A replica's state, and what it waits for or why it ended last."""
        routed = self._supervisor.routed(slot)
        if slot.broken or (slot.process is None and slot.failures):
            return "broken" if slot.broken else "waiting", slot.reason
        if slot.is_stopping or slot.draining_at is not None:
            return "draining", ""
        if routed and routed.health.ready:
            return "ready", ""
        if routed and routed.health.is_told:
            return "starting", routed.health.reason
        return "starting", last_line(slot.log) or "the process has started"

    async def _serve_status(self, request: Request) -> JSONResponse:
        return JSONResponse({"url": url_of(self._listener), "services": self.status()})


def url_of(listener: socket.socket) -> str:
    """The address that clients of this machine use."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
