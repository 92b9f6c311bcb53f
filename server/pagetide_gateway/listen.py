"""The uvicorn server, for the gateway alone and for the local runner's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import uvicorn

from .app import Gateway


class GatewayServer(uvicorn.Server):
    """uvicorn without its signal handlers: whoever runs it decides when it ends, with `stop`."""

    def __init__(self, gateway: Gateway, *, drain_s: float) -> None:
        self._gateway = gateway
        super().__init__(
            uvicorn.Config(
                gateway,
                interface="asgi3",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=max(1, round(drain_s)),
            )
        )

    def stop(self, *, now: bool = False) -> None:
        """Take no new connection and end when the requests under way are answered (`now`: at once)."""
        self._gateway.is_draining = True
        self.should_exit = True
        self.force_exit = self.force_exit or now

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signal handlers alone."""
        yield
