"""What is alike wherever we speak HTTP: addresses, a listener, the id of a request, how much of an answer is read."""

from __future__ import annotations

import errno
import re
import socket
import uuid
from collections.abc import AsyncIterable

from .errors import SettingError

BACKLOG = 2048
# What may stand in a header and a log line.
_REQUEST_ID = re.compile(r"[!-~]{1,128}")


def check_port(port: int, field: str = "--port") -> None:
    """Refuse what is no port; 0 stands for a free one.

    Raises:
        SettingError: named `field`. The system itself would take the number modulo 65536.
    """
    if not 0 <= port <= 65535:
        raise SettingError(field, port, "must be from 0 to 65535")


# What a replica reports of itself is smaller; whoever runs one must not fill the memory of those who ask.
MOST_ANSWER_BYTES = 4 << 20


async def whole_body(pieces: AsyncIterable[bytes], most: int) -> bytes:
    """All of an answer that comes in pieces.

    Raises:
        ValueError: it has more than `most` bytes, and perhaps no end.
    """
    body = bytearray()
    async for piece in pieces:
        body += piece
        if len(body) > most:
            raise ValueError(f"an answer of more than {most >> 20} MiB")
    return bytes(body)


def base_url(url: str) -> str:
    """Where a server or a gateway is, from its address with or without the `/v1` that OpenAI's clients are given."""
    return url.rstrip("/").removesuffix("/v1")


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket on host and port (0: a free one), to be opened before anything slow begins.

    Raises:
        SettingError: there is no such port or address, or the port is taken; names host:port.
    """
    check_port(port)
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
        problem = f"cannot listen on {address}: {error.strerror}"
        if error.errno == errno.EADDRNOTAVAIL:
            raise SettingError("--host", host, problem) from None
        raise SettingError("--port", port, f"{problem}; choose another with --port") from None
    listener.setblocking(False)
    return listener


def request_id_of(given: str | None) -> str:
    """The id that a client gave its request, if it is printable ASCII of sensible length, else a fresh one."""
    return given if given and _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
