"""uvicorn's HTTP protocol with limits on a request's head: none may come slowly, be huge, or not come at all."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import sys
import termios
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .dead_peers import notice_death

# From the connection's begin, or the first byte of a later request, to the end of the head.
HEAD_TIMEOUT_S = 15.0
MOST_HEAD_BYTES = 64 << 10
# A client that takes no byte of its answer for so long is taken to be gone.
WRITE_TIMEOUT_S = 60.0


def _answer(status: str, message: str) -> bytes:
    body = f'{{"error": {{"message": "{message}", "type": "invalid_request_error", "param": null, "code": null}}}}'
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close"
    return f"{head}\r\n\r\n{body}".encode()


class GuardedProtocol(HttpToolsProtocol):
    """Closes connections that take up a place and ask nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._is_in_head = True
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first head."""
        super().connection_made(transport)  # type: ignore[arg-type]
        if (connection := transport.get_extra_info("socket")) is not None:
            notice_death(connection, round(WRITE_TIMEOUT_S))
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._stop_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came, of a head no more than it may have: one that is too large may arrive in one piece."""
        while data and not self.transport.is_closing():
            size = min(len(data), MOST_HEAD_BYTES + 1 - self._head_bytes) if self._is_in_head else len(data)
            self._take(data[:size])
            data = data[size:]

    def _take(self, data: bytes) -> None:
        """Count what comes before the end of a head."""
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_timer is None:  # a later request of this connection has begun
                self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._too_slow)
        super().data_received(data)
        if not self._is_in_head and self.cycle.response_complete and self._head_timer is None:
            # The rest of a body that nobody reads, which may never come to its end.
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._too_slow)
        if self._is_in_head and self._head_bytes > MOST_HEAD_BYTES:
            self._refuse("431 Request Header Fields Too Large", f"The head is larger than {MOST_HEAD_BYTES} bytes")

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._is_in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """What comes next belongs to the next head."""
        super().on_message_complete()
        self._is_in_head, self._head_bytes = True, 0

    def send_400_response(self, msg: str) -> None:
        """What cannot be read as HTTP is answered like everything else."""
        self.transport.write(_answer("400 Bad Request", msg))
        self.transport.close()

    def close_after_answer(self) -> None:
        """Take no further request on this connection."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False

    def pause_writing(self) -> None:
        """The client does not take what it is sent."""
        super().pause_writing()
        if self._write_timer is None:
            self._await_progress(self._unsent())

    def resume_writing(self) -> None:
        """It does again."""
        self._stop_write_timer()
        super().resume_writing()

    def _await_progress(self, before: int) -> None:
        self._write_timer = self.loop.call_later(WRITE_TIMEOUT_S, self._check_progress, before)

    def _check_progress(self, before: int) -> None:
        now = self._unsent()
        if now < before:
            self._await_progress(now)
        else:
            self.transport.abort()

    def _unsent(self) -> int:
        """Bytes that the client has not taken, here and in the kernel."""
        size = self.transport.get_write_buffer_size()
        connection = self.transport.get_extra_info("socket")
        if sys.platform == "linux" and connection is not None and connection.fileno() >= 0:
            size += struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0]
        return size

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            # The answer to the request before is on its way. It is not to be cut.
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._too_slow)
        else:
            self._refuse("408 Request Timeout", f"The head of the request did not come within {HEAD_TIMEOUT_S:g} s")

    def _refuse(self, status: str, message: str) -> None:
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self._head_bytes and (self.cycle is None or self.cycle.response_complete):
            self.transport.write(_answer(status, message))
        self.transport.close()
