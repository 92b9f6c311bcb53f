"""Notices that the machine at the other end of a connection is gone."""

from __future__ import annotations

import socket
import sys

# An idle connection is asked after so many seconds, then so often, so many times.
_IDLE_S, _INTERVAL_S, _COUNT = 15, 5, 3


def notice_death(connection: socket.socket, silence_s: int) -> None:
    """From now on the connection breaks when its other end is silent: in half a minute where we wait, in `silence_s`
    where something was sent and is not taken.
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
