"""The listening socket, and its address in words."""

from __future__ import annotations

import socket

from pagetide_spec.web import listen as listen


def shown_address(listener: socket.socket, host: str) -> str:
    """http://host:port as a person would type it."""
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
