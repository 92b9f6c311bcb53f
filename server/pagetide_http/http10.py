"""Answers for clients that speak HTTP/1.0 and know no chunks: a body of unknown length ends with the connection.

uvicorn would cut it into chunks, whose marks these clients take for a part of it. It closes their connections anyway.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

Application = Callable[..., Awaitable[None]]


def without_chunks(app: Application, cycle: RequestResponseCycle) -> Application:
    """The application for the one request of `cycle`."""

    async def answer(scope: Any, receive: Any, send: Callable[..., Awaitable[None]]) -> None:
        has_length = False

        async def send_bare(message: MutableMapping[str, Any]) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", []))
                if not has_length:
                    # uvicorn decides for chunks only where nothing has been decided.
                    cycle.chunked_encoding = False
            elif not has_length:
                # It counts what is left of a body that is not chunked: each piece is all of it.
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_bare)

    return answer
