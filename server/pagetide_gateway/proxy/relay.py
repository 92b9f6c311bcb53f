"""Passes a replica's response on to the client: small ones whole, streams piece by piece as they come."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

import aiohttp

from pagetide_spec.calls import describe_failed_call

from ..replicas.registry import Replica
from ..replicas.upstream import AttemptFailed
from ..web.asgi import Message, RawHeaders, Send
from ..web.errors import stream_broken

# A response up to this size is read before the client gets its first byte, so that another replica can still take over.
WHOLE_BYTES = 1 << 20
# No event is longer; what is, is passed on as it comes.
_MOST_HELD = 1 << 20

_BROKEN = (aiohttp.ClientError, OSError)


class StreamBroken(Exception):
    """The replica's answer was cut off after the first byte; the client has got an error."""


class Answer:
    """A response whose head is there. `lose` ends it; what then breaks is reported with that reason."""

    def __init__(self, response: aiohttp.ClientResponse, replica: Replica) -> None:
        self.response, self.replica = response, replica
        self.is_events = response.headers.get("content-type", "").startswith("text/event-stream")
        # Where an event ends cannot be seen in compressed ones.
        has_events = self.is_events and "content-encoding" not in response.headers
        self.pieces = whole_events(response.content) if has_events else _pieces(response.content)
        self._why = ""

    def lose(self, why: str) -> None:
        """Give it up."""
        self._why = why
        self.response.close()

    def why(self, error: BaseException) -> str:
        """One line on why it broke off."""
        return self._why or describe_failed_call(error)

    async def read_small(self) -> bytes | None:
        """The whole body where it is small and not a stream, else None with nothing read.

        Raises:
            AttemptFailed: the replica broke off.
        """
        length = self.response.content_length
        if length is None or length > WHOLE_BYTES or self.is_events:
            return None
        try:
            return await self.response.read()
        except _BROKEN as error:
            raise AttemptFailed(self.why(error), may_have_begun=True) from error

    async def first_piece(self) -> bytes:
        """The first piece of a body that is passed on as it comes; empty where it has none.

        Raises:
            AttemptFailed: the replica broke off before.
        """
        try:
            piece = await anext(self.pieces, b"")
            if not piece and self.is_events and self.has_no_end:
                raise ConnectionResetError
            return piece
        except _BROKEN as error:
            raise AttemptFailed(self.why(error), may_have_begun=True) from error

    @property
    def has_no_end(self) -> bool:
        """Whether only the close of the connection ends the body, as the death of the replica would."""
        headers = self.response.headers
        return "content-length" not in headers and "transfer-encoding" not in headers


class Heard:
    """What a stream's pieces show on the way: that the replica lives, its first token, and how it ended."""

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


async def relay(answer: Answer, first: bytes, headers: RawHeaders, send: Send, heard: Heard) -> None:
    """Pass the body on as it comes. A slow client slows the reading from the replica; nothing piles up here.

    Raises:
        StreamBroken: the replica broke off; an event stream has got an error event, anything else ends unfinished.
    """
    replica, events = answer.replica, answer.is_events
    if events:
        # An error event may have to be added.
        headers = [h for h in headers if h[0] != b"content-length"]
    await send({"type": "http.response.start", "status": answer.response.status, "headers": headers})
    try:
        if first:
            heard.note(first)
            await _pass_on({"type": "http.response.body", "body": first, "more_body": True}, replica, send)
        async for piece in answer.pieces:
            heard.note(piece)
            await _pass_on({"type": "http.response.body", "body": piece, "more_body": True}, replica, send)
        if events and answer.has_no_end and b"[DONE]" not in heard.tail:
            raise ConnectionResetError
    except _BROKEN as error:
        why = answer.why(error)
        if events:
            # A plain body that ends unfinished needs no word: the client sees it from the length or the chunks.
            await send({"type": "http.response.body", "body": stream_broken(replica.name, why).sse()})
        raise StreamBroken(why) from error
    await send({"type": "http.response.body", "body": b""})


async def _pass_on(message: Message, replica: Replica, send: Send) -> None:
    """Send to the client. As long as it does not take it, the silence is not the replica's."""
    replica.blocked += 1
    try:
        await send(message)
    finally:
        replica.blocked -= 1
        replica.heard = time.monotonic()


async def _pieces(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    while piece := await content.readany():
        yield piece


async def whole_events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Bytes as they come, cut only behind the empty line that ends an event.

    What follows the last such line is held back until the rest of its event is there. A client therefore never has half
    an event in hand when the stream breaks, and the error event can be read.
    """
    held = bytearray()
    while piece := await content.readany():
        if not held and piece.endswith((b"\n\n", b"\n\r\n")):
            yield piece
            continue
        # The empty line may lie across what is held and what has come.
        searched = max(0, len(held) - 2)
        held += piece
        end = max(held.rfind(b"\n\n", searched) + 2, held.rfind(b"\n\r\n", searched) + 3)
        if end < 3:
            end = len(held) if len(held) > _MOST_HELD else 0
        if end:
            yield bytes(held[:end])
            del held[:end]
    if held:
        yield bytes(held)
