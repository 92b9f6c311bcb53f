"""The listening socket, opened before anything slow, so that a taken port is known at once."""

from __future__ import annotations

import socket

from pagetide_spec.errors import SettingError

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket on host and port (0: a free one).

    Raises:
        SettingError: the address does not exist, or the port is taken; names host:port.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise SettingError("--host", host, f"cannot listen on {address}: {error}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        problem = f"cannot listen on {address}: {error.strerror}; choose another with --port"
        raise SettingError("--port", port, problem) from None
    listener.setblocking(False)
    return listener


def shown_address(listener: socket.socket, host: str) -> str:
    """http://host:port as a person on this machine would type it."""
    port = listener.getsockname()[1]
    # A socket that listens everywhere has no address that can be typed.
    if host in ("0.0.0.0", "::", ""):
        host = "localhost"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
