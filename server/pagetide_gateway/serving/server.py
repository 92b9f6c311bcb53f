"""The uvicorn server, for the gateway alone and for the local runner's."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import Iterator

import uvicorn

from pagetide_http.protocol import ConnectionLimits, GuardedProtocol

from .app import Gateway

# How long a request that is cut may take to say so.
LAST_WORDS_S = 1
LIMITS = ConnectionLimits(head_timeout_s=15.0, head_bytes=64 << 10)


def raise_file_limit() -> None:
    """Let this process have as many open files as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Where the hard limit is "infinite" the system may still have a lower one of its own.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class GatewayServer(uvicorn.Server):
    """uvicorn without its signal handlers: whoever runs it decides when it ends, with `stop`."""

    def __init__(self, gateway: Gateway, *, drain_s: float) -> None:
        self._gateway, self._drain_s = gateway, drain_s
        self._deadline = 0.0
        super().__init__(
            uvicorn.Config(
                gateway,
                interface="asgi3",
                http=GuardedProtocol.within(LIMITS),
                lifespan="on",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=LAST_WORDS_S,
            )
        )

    def stop(self, *, now: bool = False) -> None:
        """Take no new request, and end when those under way are answered or `drain_s` is over (`now`: at once).

        The port stays open until then: requests get 503, and probes still succeed.
        """
        if not self._gateway.is_draining:
            self._deadline = asyncio.get_running_loop().time() + self._drain_s
        self._gateway.is_draining = True
        for connection in self.server_state.connections:
            if isinstance(connection, GuardedProtocol):
                connection.close_after_answer()
        self.should_exit = self.force_exit = self.force_exit or now

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen; every stream takes two file descriptors of the process."""
        raise_file_limit()
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        """uvicorn's question, ten times per second, whether to end.

        Raises:
            Exception: what a background task of the gateway died of; without it replicas are no longer looked after.
        """
        self._gateway.check_tasks()
        if self._gateway.is_draining:
            if is_over := asyncio.get_running_loop().time() >= self._deadline:
                self._gateway.cut()
            self.should_exit = self.should_exit or is_over or not self.server_state.tasks
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signal handlers alone."""
        yield
