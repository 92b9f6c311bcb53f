"""Sending answers: server-sent events or one JSON document, given up as soon as the client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagetide_http.fast_path import FAST_PATH, FastPath

from .errors import translate

DONE = b"data: [DONE]\n\n"
encode = msgspec.json.Encoder().encode

Work = Callable[[Send], Awaitable[None]]


def event(message: object) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(message) + b"\n\n"


class WatchedResponse(Response):
    """Runs `work`, which sends the response, unless the client leaves first: then it is cancelled.

    An error of `work` before it has sent anything is raised, so that it becomes an HTTP error.
    """

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        work = asyncio.ensure_future(self._work(send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                scope.setdefault("state", {})["client_gone"] = True
        finally:
            work.cancel()
            gone.cancel()
            await asyncio.wait((work, gone))
        if not work.cancelled():
            work.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_json(send: Send, message: object) -> None:
    """Send a whole JSON answer."""
    body = encode(message)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Events(Protocol):
    """The events of a stream."""

    async def next(self) -> bytes:
        """What comes next; nothing at the end."""

    def hurry(self, way: FastPath) -> None:
        """From now on events may be written as they come, while a call of `next` waits for them."""


async def send_events(send: Send, events: Events, way: FastPath | None = None) -> None:
    """Send a stream of events, closed by [DONE].

    The head is sent with the first part, so that an error before it is still raised. A later one becomes an event.
    """
    part = await events.next()
    await send({"type": "http.response.start", "status": 200, "headers": _EVENT_HEADERS})
    if way is not None:
        events.hurry(way)
    tail = DONE
    try:
        while part:
            await _send_part(send, part, way)
            part = await events.next()
    except Exception as error:  # noqa: BLE001 - whatever it is, the client must hear of it
        tail = translate(error).sse()
    await send({"type": "http.response.body", "body": tail})


async def _send_part(send: Send, part: bytes, way: FastPath | None) -> None:
    if way is not None and way.is_free():
        way.write(part)
        return
    await send({"type": "http.response.body", "body": part, "more_body": True})


def fast_path(scope: Scope) -> FastPath | None:
    """The fast path to a request's socket, if its server has one."""
    cycle = scope.get("extensions", {}).get(FAST_PATH)
    return None if cycle is None else FastPath(cycle)


_EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
