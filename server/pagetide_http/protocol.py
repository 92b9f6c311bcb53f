"""Connections: what uvicorn's HTTP protocol does not do by itself.

A client gets a limited time and size for a request's head, may offer to change the protocol, gets error objects for
malformed HTTP, is missed when it leaves with requests still queued or takes nothing, gets a body without chunks where
it speaks HTTP/1.0, and a stream gets a fast path to its socket.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import http
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pagetide_spec.names import HEADER_REQUEST_ID
from pagetide_spec.web import request_id_of

from .errors import ApiError
from .fast_path import FAST_PATH
from .http10 import without_chunks
from .peers import Patience, notice_death
from .upgrades import pass_over

# Requests that may wait behind the one that is answered; a client that sends more is not read from meanwhile.
MAX_PIPELINED = 16


@dataclasses.dataclass(frozen=True)
class ConnectionLimits:
    """What a connection may take.

    Attributes:
        head_timeout_s: from the connection's begin, or the first byte of a later request, to the end of the head; and
            for the rest of a body that nobody reads.
        head_bytes: of a head. The parser copies a growing header again with every piece of it that comes.
        write_timeout_s: a client that takes no byte of its answer for so long is taken to be gone.
    """

    head_timeout_s: float
    head_bytes: int
    write_timeout_s: float = 60.0


class _Part(enum.Enum):
    """Of a request, what is being read."""

    NOTHING = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, guarded; to be used by way of `within`.

    Between two requests of a connection, uvicorn's own keep-alive limit holds; of a body only the rest that nobody
    reads has one here.
    """

    limits: ConnectionLimits
    _read_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _part = _Part.NOTHING
    # The request that is answered now; `cycle` is the newest one.
    _answered: RequestResponseCycle | None = None

    @classmethod
    def within(cls, limits: ConnectionLimits) -> type[GuardedProtocol]:
        """The protocol with these limits."""
        return type(cls.__name__, (cls,), {"limits": limits})

    # ---- the connection

    def connection_made(self, transport: Any) -> None:
        """A client connected."""
        super().connection_made(transport)
        notice_death(transport.get_extra_info("socket"), max(1, round(self.limits.write_timeout_s)))
        self._patience = Patience(transport, self.limits.write_timeout_s)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed. uvicorn notifies only the newest of its requests."""
        self._stop_timer()
        self._patience.end()
        super().connection_lost(exc)
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()

    def pause_writing(self) -> None:
        """The client does not take what it is sent."""
        super().pause_writing()
        self._patience.begin()

    def resume_writing(self) -> None:
        """It does again."""
        self._patience.end()
        super().resume_writing()

    def close_after_answer(self) -> None:
        """Take no further request on this connection."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False

    # ---- requests

    def data_received(self, data: bytes) -> None:
        """Take what came, of a head no more than it may have: one that is too large may arrive in one piece."""
        self._unset_keepalive_if_required()
        while data and not self.transport.is_closing():
            is_body = self._part is _Part.BODY
            size = len(data) if is_body else min(len(data), self.limits.head_bytes + 1 - self._head_bytes)
            data = self._take(data[:size]) + data[size:]
        self._keep_alive()

    def _keep_alive(self) -> None:
        """Limit the time between two requests, where uvicorn does not: behind a body that came after its answer."""
        is_between = self._part is _Part.NOTHING and self.cycle is not None and self.cycle.response_complete
        has_timer = self._read_timer is not None or self.timeout_keep_alive_task is not None
        if is_between and not has_timer and not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _take(self, data: bytes) -> bytes:
        """Have the parser read a piece; what of it is to be read again."""
        if self._part is not _Part.BODY:
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            return pass_over(self, data[offer.args[0] :])
        except httptools.HttpParserError:
            self._refuse(400, "the request is no valid HTTP")
            return b""
        if self._part is not _Part.BODY:
            if self._head_bytes > self.limits.head_bytes:
                self._refuse(431, f"the request's head is larger than {self.limits.head_bytes} bytes")
        elif self.cycle.response_complete and self._read_timer is None:
            # The rest of a body that nobody reads, which may never come to its end.
            self._start_timer()
        return b""

    def on_message_begin(self) -> None:
        """The first byte of a request is there."""
        super().on_message_begin()
        self._part = _Part.HEAD
        if self._read_timer is None:
            self._start_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; the trailers of a body are no headers of its request (RFC 9110, 6.5.1) and are dropped."""
        if self._part is _Part.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A request's head is complete."""
        super().on_headers_complete()
        self._part = _Part.BODY
        self._stop_timer()
        # ASGI's types know no extension of a server's own.
        extensions: Any = {FAST_PATH: self.cycle}
        self.cycle.scope["extensions"] = extensions
        # uvicorn stops reading at a request that has to wait, and then does not see the client leave.
        if 0 < len(self.pipeline) < MAX_PIPELINED:
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        """A request is complete, unless it offers to change the protocol: then its body is still to be read."""
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._part, self._head_bytes, self.headers = _Part.NOTHING, 0, []
        self._stop_timer()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        if cycle.scope["http_version"] == "1.0":
            app = without_chunks(app, cycle)
        super()._start_asgi_task(cycle, app)

    # ---- refusals

    def _refuse(self, status: int, message: str) -> None:
        """Answer what is no whole request, unless that would land inside or behind another answer, and hang up."""
        cycle = self.cycle
        if self._part is _Part.BODY:
            is_awaited = cycle is self._answered and not cycle.response_started
        else:
            is_awaited = cycle is None or cycle.response_complete
        if is_awaited and not self.transport.is_closing():
            self.transport.write(self._wire(ApiError(status, message)))
            if cycle is not None and not cycle.response_complete:
                # Its own answer must not follow while the buffer is still being sent.
                cycle.disconnected = True
                cycle.message_event.set()
        self._stop_timer()
        self.transport.close()

    def _wire(self, error: ApiError) -> bytes:
        """An error as bytes, with the request's id where that has come."""
        body = error.body()
        given = dict(self.headers or ()).get(HEADER_REQUEST_ID.encode(), b"")
        lines = [
            f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
            f"{HEADER_REQUEST_ID}: {request_id_of(given.decode('latin-1'))}",
        ]
        return "\r\n".join([*lines, "\r\n"]).encode() + body

    def _start_timer(self) -> None:
        self._read_timer = self.loop.call_later(self.limits.head_timeout_s, self._time_out)

    def _stop_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _time_out(self) -> None:
        self._read_timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            # The answer to the request before is on its way. It is not to be cut.
            self._start_timer()
        elif self._part is _Part.HEAD:
            self._refuse(408, f"the request's head did not come within {self.limits.head_timeout_s:g} s")
        else:
            self.transport.close()
