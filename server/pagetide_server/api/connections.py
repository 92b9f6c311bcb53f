"""Connections: a client gets a limited time to send a request's head, and a stream a short way to its socket."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .short_way import SHORT_WAY, Outgoing, ShortWay


class TimedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which closes a connection whose request head is not complete in time.

    Between two requests of a connection, uvicorn's own keep-alive limit holds; the body has its limit in `BodyLimit`.
    """

    head_timeout_s = 30.0
    outgoing = Outgoing()
    _head_timer: asyncio.TimerHandle | None = None

    @classmethod
    def with_timeout(cls, seconds: float) -> type[TimedProtocol]:
        """The protocol with another limit."""
        return type(cls.__name__, (cls,), {"head_timeout_s": seconds, "outgoing": Outgoing()})

    def connection_made(self, transport: Any) -> None:
        """A client connected."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes came; the first ones of a later request start its time."""
        if self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._start_timer()
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """A request's head is complete."""
        self._stop_timer()
        super().on_headers_complete()
        if self.cycle is not None:
            self.cycle.scope["extensions"] = {SHORT_WAY: ShortWay(self.cycle, self.outgoing)}

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._time_out)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _time_out(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()
