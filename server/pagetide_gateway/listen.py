"""Sockets and the uvicorn server, for the gateway alone and for the local runner's."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from pagetide_spec.errors import SettingError

from .app import Gateway

BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes a free one.

    Raises:
        SettingError: the port is taken or not allowed, or the host is not an address of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise SettingError("--host", host, f"is no address of this machine ({error.strerror})") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise SettingError("--port", port, f"cannot listen on {host} ({error.strerror}); take another port") from None
    listener.setblocking(False)
    return listener


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
