"""Connections to the server under load: HTTP/1.1 POSTs without a task or a buffer for each piece of an answer.

A general client wakes a coroutine for every chunk, which at 20,000 tokens per second is most of a core. Here each chunk
is one call from the socket through the HTTP parser to the reader of events.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import cast
from urllib.parse import SplitResult, urlsplit

import httptools

from pagetide_spec.errors import SettingError

from .figures import CUT_OFF, Outcome
from .stream import Reply


def split_url(url: str) -> SplitResult:
    """The parts of a URL.

    Raises:
        SettingError: it is not http(s)://HOST[:PORT][/PATH].
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise SettingError("URL", url, str(error)) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingError("URL", url, "must be http://HOST:PORT or https://HOST:PORT")
    if parts.query or parts.fragment:
        raise SettingError("URL", url, "must have no query and no fragment (?... or #...): paths are added to it")
    return parts


class Client:
    """Sends bodies to one URL, over connections that are used again.

    Raises:
        SettingError: the URL is not http(s)://HOST[:PORT][/PATH].
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float) -> None:
        parts = split_url(url)
        self._host, port = parts.hostname or "", parts.port
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = port or (443 if self._ssl else 80)
        lines = [f"POST {parts.path or '/'} HTTP/1.1", f"host: {parts.netloc.rpartition('@')[2]}"]
        lines += ["content-type: application/json", "accept: text/event-stream"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._head = "\r\n".join(lines).encode("latin-1")
        self._timeout = timeout
        self._idle: list[_Connection] = []

    async def post(self, body: bytes, outcome: Outcome) -> None:
        """Send one request and fill its outcome. Cancelled, it leaves the outcome cut off."""
        outcome.sent = time.monotonic()
        reply = Reply(outcome)
        try:
            async with asyncio.timeout(self._timeout):
                await self._exchange(body, reply)
        except TimeoutError:
            reply.close(time.monotonic(), "timeout")
        except OSError as error:
            reply.close(time.monotonic(), type(error).__name__)
            outcome.detail = str(error)
        except asyncio.CancelledError:
            outcome.failure = CUT_OFF
            raise

    async def _exchange(self, body: bytes, reply: Reply) -> None:
        request = self._head + b"\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        connection = self._take_idle()
        if connection is not None and await connection.exchange(request, reply):
            return
        # A kept connection may be closed by the server just when it is used again; a fresh one shows which.
        connection = await self._connect()
        if not await connection.exchange(request, reply):
            reply.close(time.monotonic(), "closed without an answer")

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
        return None

    async def _connect(self) -> _Connection:
        """To the first of the host's addresses that answers; where none does, the error of the last one."""
        loop, problem = asyncio.get_running_loop(), OSError(f"{self._host} has no address")
        name = self._host if self._ssl else None
        for *_, address in await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM):
            try:
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._idle.append), *address[:2], ssl=self._ssl, server_hostname=name
                )
            except OSError as error:
                problem = error
            else:
                return connection
        raise problem

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()


class _Connection(asyncio.Protocol):
    """One connection, which serves one exchange at a time; `give_back` is called when it can serve the next."""

    def __init__(self, give_back: Callable[[_Connection], None]) -> None:
        self._give_back = give_back
        self._reply: Reply | None = None
        self._done: asyncio.Future[bool] | None = None

    async def exchange(self, request: bytes, reply: Reply) -> bool:
        """Send and wait for the answer's end; False if the connection closed before any of it came."""
        self._parser = httptools.HttpResponseParser(self)
        self._reply, self._begun = reply, False
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._done
        except asyncio.CancelledError:
            self._reply = None
            self.close()
            raise

    def is_usable(self) -> bool:
        """Whether the server has kept it open."""
        return not self._transport.is_closing()

    def close(self) -> None:
        """Close it."""
        self._transport.close()

    # ---- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        # uvloop's transports are not asyncio's by class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        if self._reply is None:
            self.close()  # nobody has asked
            return
        self._begun, self._now = True, time.monotonic()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._finish("not HTTP", str(error))
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone: the end of an answer without a length, or a break."""
        if self._reply is not None and self._begun:
            self._now = time.monotonic()
            self._finish(type(error).__name__ if error else "")
        elif self._reply is not None:
            self._reply = None
            self._settle(False)

    # ---- httptools

    def on_headers_complete(self) -> None:
        """The status is known."""
        if self._reply is not None:
            self._reply.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self._reply is not None:
            self._reply.feed(body, self._now)

    def on_message_complete(self) -> None:
        """The answer is complete."""
        keeps = self._parser.should_keep_alive()
        self._finish()
        if keeps:
            self._give_back(self)
        else:
            self.close()

    def _finish(self, problem: str = "", detail: str = "") -> None:
        if self._reply is not None:
            self._reply.close(self._now, problem)
            self._reply.outcome.detail = self._reply.outcome.detail or detail
            self._reply = None
        self._settle(True)

    def _settle(self, answered: bool) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(answered)
