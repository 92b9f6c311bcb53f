"""Passes a replica's response on to the client: small ones whole, streams piece by piece as they come."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

import aiohttp

from .asgi import RawHeaders, Send
from .errors import stream_broken
from .registry import Replica
from .upstream import AttemptFailed, describe

# A response up to this size is read before the client gets its first byte, so that another replica can still take over.
WHOLE_BYTES = 1 << 20

_BROKEN = (aiohttp.ClientError, OSError)


class StreamBroken(Exception):
    """The replica broke off after the first byte; the client has been told."""


def is_event_stream(response: aiohttp.ClientResponse) -> bool:
    """Whether the body is server-sent events."""
    return response.headers.get("content-type", "").startswith("text/event-stream")


class Heard:
    """What a stream's pieces tell on the way: that the replica lives, its first token, and how it ended."""

    def __init__(self, replica: Replica, on_first: Callable[[float], object]) -> None:
        self._replica, self._on_first = replica, on_first
        self._before = self._last = b""

    def note(self, piece: bytes) -> None:
        """A piece has come."""
        self._replica.heard = now = time.monotonic()
        if not self._last:
            self._on_first(now)
        self._before, self._last = self._last, piece

    @property
    def tail(self) -> bytes:
        """The last two pieces; `usage` is in there, if anywhere."""
        return self._before + self._last


async def read_small(response: aiohttp.ClientResponse, replica: Replica) -> bytes | None:
    """The whole body where it is small and not a stream, else None with nothing read.

    Raises:
        AttemptFailed: the replica broke off.
    """
    length = response.content_length
    if length is None or length > WHOLE_BYTES or is_event_stream(response):
        return None
    try:
        return await response.read()
    except _BROKEN as error:
        raise AttemptFailed(replica.why_lost or describe(error), may_have_begun=True) from error


async def relay(
    response: aiohttp.ClientResponse, replica: Replica, headers: RawHeaders, send: Send, heard: Heard
) -> None:
    """Pass the body on as it comes. A slow client slows the reading from the replica; nothing piles up here.

    Raises:
        StreamBroken: the replica broke off; an event stream has got an error event, anything else ends unfinished.
    """
    events = is_event_stream(response)
    if events:
        # An error event may have to be added.
        headers = [h for h in headers if h[0] != b"content-length"]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    pieces = whole_events(response.content) if events else _pieces(response.content)
    try:
        async for piece in pieces:
            heard.note(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if events and _has_no_end(response) and b"[DONE]" not in heard.tail:
            raise ConnectionResetError
    except _BROKEN as error:
        if events:
            # A plain body that ends unfinished needs no word: the client sees it from the length or the chunks.
            last = stream_broken(replica.name, describe(error)).sse()
            await send({"type": "http.response.body", "body": last})
        raise StreamBroken(describe(error)) from error
    await send({"type": "http.response.body", "body": b""})


def _has_no_end(response: aiohttp.ClientResponse) -> bool:
    """Whether only the close of the connection ends the body, as the death of the replica would."""
    return "content-length" not in response.headers and "transfer-encoding" not in response.headers


async def _pieces(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    while piece := await content.readany():
        yield piece


async def whole_events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Bytes as they come, cut only behind the empty line that ends an event.

    What follows the last such line is held back until the rest of its event is there. A client therefore never has half
    an event in hand when the stream breaks, and the error event can be read.
    """
    held = b""
    while piece := await content.readany():
        if held:
            piece = held + piece
            held = b""
        if not piece.endswith((b"\n\n", b"\n\r\n")):
            end = max(piece.rfind(b"\n\n") + 2, piece.rfind(b"\n\r\n") + 3)
            if end < 3:
                held = piece
                continue
            piece, held = piece[:end], piece[end:]
        yield piece
    if held:
        yield held
