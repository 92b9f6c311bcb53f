"""The listening socket, and its address in words."""

from __future__ import annotations

import socket

from pagetide_spec.web import listen as listen


def shown_address(listener: socket.socket, host: str) -> str:
    """http://host:port as a person on this machine would type it."""
    port = listener.getsockname()[1]
    # A socket that listens everywhere has no address that can be typed.
    if host in ("0.0.0.0", "::", ""):
        host = "localhost"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
