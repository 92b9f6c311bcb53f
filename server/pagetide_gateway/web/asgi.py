"""The few ASGI steps of the hot path, written out: no framework stands between the sockets there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from typing import Any

from .errors import ApiError, bodies_too_large, body_too_large, body_too_slow

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]


# Between two pieces of a request's body, as with the server; and what a body may take in all, at the least speed.
BODY_TIMEOUT_S = 30.0
_LEAST_BYTES_PER_S = 64 << 10


class BodyBudget:
    """Bytes that the bodies of all requests may take together, as long as they may still have to be sent."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class BodyShare:
    """One request's part of a budget. Use as a context: what it has taken is given back at the end, if not before."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._size = 0

    def take(self, size: int) -> None:
        """So many bytes more.

        Raises:
            ApiError: 503: there is no room for them.
        """
        if self._budget.used + size > self._budget.limit:
            raise bodies_too_large()
        self._budget.used += size
        self._size += size

    def give_back(self) -> None:
        """All that it has taken."""
        self._budget.used -= self._size
        self._size = 0

    def __enter__(self) -> BodyShare:
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()


class ClientGone(Exception):
    """The client closed its connection before its answer was complete."""


def header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The first value of a header; `name` in lower case, as ASGI has them."""
    for key, value in headers:
        if key == name:
            return value.decode("latin-1")
    return None


def has_body(scope: Scope) -> bool:
    """Whether a request has more to come than its head."""
    length = header(scope["headers"], b"content-length")
    return (length is not None and length != "0") or header(scope["headers"], b"transfer-encoding") is not None


async def read_body(scope: Scope, receive: Receive, limit: int, share: BodyShare) -> bytes:
    """The whole request body, which takes its size from `share`.

    Raises:
        ApiError: 413, as soon as it is known to be larger than `limit` bytes; 408 where nothing more of it comes; 503
            where the bodies that are here leave no room for it.
        ClientGone: the connection closed before the end.
    """
    length = header(scope["headers"], b"content-length")
    if length is not None and int(length) > limit:
        raise body_too_large(limit)
    parts: list[bytes] = []
    size = 0
    longest = BODY_TIMEOUT_S + limit / _LEAST_BYTES_PER_S
    end = asyncio.get_running_loop().time() + longest
    while True:
        message = await _in_time(receive)
        if message.get("more_body") and asyncio.get_running_loop().time() > end:
            raise body_too_slow(longest)
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise body_too_large(limit)
        share.take(len(part))
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _in_time(receive: Receive) -> Message:
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await receive()
    except TimeoutError:
        raise body_too_slow(BODY_TIMEOUT_S) from None


async def send_whole(send: Send, status: int, headers: RawHeaders, body: bytes) -> None:
    """Send a response whose body is known."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_error(
    send: Send, error: ApiError, extra: Iterable[tuple[bytes, bytes]] = (), *, is_last: bool = False
) -> None:
    """Send an OpenAI error object; `is_last` closes the connection, as where the rest of a body will not be read."""
    body = error.body()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in error.headers.items()]
    if is_last:
        headers.append((b"connection", b"close"))
    await send_whole(send, error.status, [*headers, *extra], body)


async def until_gone(receive: Receive) -> None:
    """Return when the client closes its connection (or has its whole answer)."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def run_until_gone(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Await `work`, and cancel it when the client leaves before it is done.

    Raises:
        ClientGone: the client left; `work` has been cancelled and has cleaned up.
    """
    task = asyncio.current_task()
    assert task is not None  # a coroutine always runs in a task here
    is_working, is_gone = True, False

    def on_gone(_: object) -> None:
        nonlocal is_gone
        if is_working:
            is_gone = True
            task.cancel()

    watcher = asyncio.create_task(until_gone(receive))
    watcher.add_done_callback(on_gone)
    try:
        await work
    except asyncio.CancelledError:
        # Someone else may have cancelled too, as a server that shuts down does.
        if not is_gone or task.uncancel() > 0:
            raise
        raise ClientGone from None
    finally:
        is_working = False
        watcher.cancel()
