"""The listening socket; bound before anything is started, so that a busy port is told before anything runs."""

from __future__ import annotations

import socket

from pagetide_spec.errors import SettingError

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
