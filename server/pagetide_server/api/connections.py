"""Connections: what uvicorn's HTTP protocol does not do by itself.

A client gets a limited time to send a request's head, may offer to change the protocol, gets error objects for what is
malformed HTTP, is missed when it leaves with requests still queued, and a stream gets a short way to its socket.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pagetide_spec.names import HEADER_REQUEST_ID

from .errors import invalid
from .short_way import SHORT_WAY, ShortWay
from .until_close import until_close

# Requests that may wait behind the one that is answered; a client that sends more is not read from meanwhile.
MAX_PIPELINED = 16
_FRAMING = (b"content-length", b"transfer-encoding")
# Bytes of a request's head. The parser copies a growing header again with every piece of it that comes.
MAX_HEAD = 2**20


class TimedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which closes a connection whose request head is not complete in time.

    Between two requests of a connection, uvicorn's own keep-alive limit holds; the body has its limit in `BodyLimit`.
    """

    head_timeout_s = 30.0
    _head_timer: asyncio.TimerHandle | None = None
    _head_size = 0
    # The request that is answered now; `cycle` is the newest one.
    _answered: RequestResponseCycle | None = None

    @classmethod
    def with_timeout(cls, seconds: float) -> type[TimedProtocol]:
        """The protocol with another limit."""
        return type(cls.__name__, (cls,), {"head_timeout_s": seconds})

    def connection_made(self, transport: Any) -> None:
        """A client connected."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed. uvicorn notifies only the newest of its requests."""
        self._stop_timer()
        super().connection_lost(exc)
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Bytes came; the first ones of a later request start its time."""
        if self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._start_timer()
        self._unset_keepalive_if_required()
        size = len(data)
        try:
            while data:
                data = self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("the request is no valid HTTP")
            return
        self._head_size = 0 if self._head_timer is None else self._head_size + size
        if self._head_size > MAX_HEAD:
            self.send_400_response(f"the request's head is larger than {MAX_HEAD} bytes")

    def on_headers_complete(self) -> None:
        """A request's head is complete."""
        self._stop_timer()
        super().on_headers_complete()
        if self.cycle is not None:
            # ASGI's types know no extension of a server's own.
            extensions: Any = {SHORT_WAY: ShortWay(self.cycle)}
            self.cycle.scope["extensions"] = extensions
        # uvicorn stops reading at a request that has to wait, and then does not see the client leave.
        if 0 < len(self.pipeline) < MAX_PIPELINED:
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        """A request is complete, unless it offers to change the protocol: then its body is still to be read."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse malformed HTTP, with an error object unless that would land inside another answer, and hang up."""
        cycle = self.cycle
        breaks_off = cycle is not None and cycle.more_body and not cycle.response_started and not self.pipeline
        if cycle is not None and not cycle.response_complete and not breaks_off:
            self.transport.close()
            return
        response = invalid(msg).response({"connection": "close", HEADER_REQUEST_ID: uuid.uuid4().hex})
        head = b"".join(b"%b: %b\r\n" % header for header in response.raw_headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n%b\r\n%b" % (head, bytes(response.body)))
        self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        if cycle.scope["http_version"] == "1.0":
            app = until_close(app, cycle)
        super()._start_asgi_task(cycle, app)

    def _feed(self, data: bytes) -> bytes:
        """Have the parser read; what it leaves behind the head of a request that offers to change the protocol.

        No other protocol is spoken here, so the offer is passed over (RFC 9110, 7.8), as Java's client needs it, which
        offers HTTP/2 with its first request. The parser takes such a request to end with its head.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.parser = httptools.HttpRequestParser(_Resumed(self))
            framing = [b"%b: %b\r\n" % header for header in self.headers if header[0] in _FRAMING]
            return b"POST / HTTP/1.1\r\n%b\r\n%b" % (b"".join(framing), data[upgrade.args[0] :])
        return b""

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


class _Resumed:
    """What a parser calls that starts behind the head of a request: for that one, only its body is reported."""

    def __init__(self, protocol: TimedProtocol) -> None:
        self._protocol, self._in_head = protocol, True
        self.on_body, self.on_message_complete = protocol.on_body, protocol.on_message_complete

    def on_message_begin(self) -> None:
        if not self._in_head:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._in_head:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._in_head:
            self._protocol.on_headers_complete()
        self._in_head = False
