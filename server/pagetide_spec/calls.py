"""What is alike wherever we call others over HTTP by aiohttp: what is said of a call that failed."""

from __future__ import annotations

import aiohttp


def describe_failed_call(error: BaseException) -> str:
    """One line on a failed call; aiohttp's own, of a connection, tells of its settings ("ssl:default")."""
    if isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError | aiohttp.ClientPayloadError):
        return "the connection was closed"
    if isinstance(error, aiohttp.ClientConnectorError):
        why = "" if isinstance(error.os_error, ConnectionError) else f": {error.os_error.strerror or error.os_error}"
        return f"cannot connect to {error.host}:{error.port}{why}"
    return str(error) or type(error).__name__
