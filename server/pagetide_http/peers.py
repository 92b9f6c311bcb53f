"""Notices that the other end of a connection is gone, or takes nothing of what it is sent."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import sys
import termios

# An idle connection is asked after so many seconds, then so often, so many times.
_IDLE_S, _INTERVAL_S, _COUNT = 15, 5, 3


def notice_death(connection: socket.socket, silence_s: int) -> None:
    """From now on the connection breaks when its other end is silent for about `silence_s`, be it that we wait
    or that something was sent and is not taken.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        for option, value in (
            (socket.TCP_KEEPIDLE, _IDLE_S),
            (socket.TCP_KEEPINTVL, _INTERVAL_S),
            (socket.TCP_KEEPCNT, _COUNT),
            (socket.TCP_USER_TIMEOUT, silence_s * 1000),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Patience:
    """Breaks a connection whose other end takes no byte for `seconds` while some wait for it."""

    def __init__(self, transport: asyncio.Transport, seconds: float) -> None:
        self._transport, self._seconds = transport, seconds
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Bytes wait."""
        if self._timer is None:
            self._await_progress(self._unsent())

    def end(self) -> None:
        """They have been taken, or the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _await_progress(self, before: int) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._check_progress, before)

    def _check_progress(self, before: int) -> None:
        now = self._unsent()
        if now < before:
            self._await_progress(now)
        else:
            self._transport.abort()

    def _unsent(self) -> int:
        """Bytes that the other end has not taken, here and in the kernel."""
        size = self._transport.get_write_buffer_size()
        connection = self._transport.get_extra_info("socket")
        if sys.platform == "linux" and connection is not None and connection.fileno() >= 0:
            size += struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0]
        return size
