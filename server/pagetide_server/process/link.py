"""The API process's end of the socket between the two processes; `channels.py` has the other end."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable

import msgspec

from ..wire.messages import FromEngine, ToEngine
from .frames import BUFFER_BYTES, READ_BYTES, FrameSplitter, frame

# Messages handled before other tasks of the event loop get their turn.
DRAIN_AT_ONCE = 32


class Link:
    """One connection, for both directions. Incoming messages are handed to `handle` from the event loop.

    `handle` also hears whether a message is the last one: no other has been read behind it yet.

    Attributes:
        engine_end: for the engine process to inherit; to be closed here once that has started.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, handle: Callable[[FromEngine, bool], None]) -> None:
        self._loop, self._handle = loop, handle
        self._socket, self.engine_end = socket.socketpair()
        for end in (self._socket, self.engine_end):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self._socket.setblocking(False)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
        self._frames = FrameSplitter()
        # One for all reads: a fresh one of this size is taken from the system page by page.
        self._buffer = memoryview(bytearray(READ_BYTES))
        # Messages that have been read but not handled.
        self._arrived: deque[bytearray] = deque()
        # What the socket has not taken yet: the engine reads nothing during a step, nor while it loads.
        self._unsent = bytearray()
        # The turn in which the rest is handled, if there is a rest.
        self._again: asyncio.Handle | None = None
        loop.add_reader(self._socket, self.receive)

    def send(self, message: ToEngine) -> None:
        """Send a message to the engine, or keep it until the socket takes it; never blocks."""
        is_first = not self._unsent
        self._unsent += frame(self._encoder.encode(message))
        if is_first:
            self._write()
            if self._unsent:
                self._loop.add_writer(self._socket, self._write_on)

    def receive(self) -> None:
        """Handle what has arrived, at most DRAIN_AT_ONCE messages; the event loop comes back for more."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if not self._arrived:
            self._read()
        try:
            for _ in range(min(DRAIN_AT_ONCE, len(self._arrived))):
                message = self._decoder.decode(self._arrived.popleft())
                self._handle(message, not self._arrived)
        finally:
            # Whatever becomes of a message, nothing else announces those that have been read behind it.
            if self._arrived:
                self._again = self._loop.call_soon(self.receive)

    def receive_last(self) -> None:
        """Handle what an ended process has left in the socket."""
        while self._read():
            pass
        while self._arrived:
            self._handle(self._decoder.decode(self._arrived.popleft()), False)

    def close(self) -> None:
        """Close the connection."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self.engine_end.close()

    def _read(self) -> bool:
        """Read once; whether there may be more."""
        try:
            count = self._socket.recv_into(self._buffer)
        except BlockingIOError:
            return False
        except ConnectionError:  # the engine has ended, and had not read all of ours
            count = 0
        if not count:
            # The end would be announced over and over; what it means says the watcher of the process.
            self._loop.remove_reader(self._socket)
        self._arrived.extend(self._frames.feed(self._buffer[:count]))
        return bool(count)

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except ConnectionError:  # the engine has ended, as the watcher of its process will say
            sent = len(self._unsent)
        del self._unsent[:sent]

    def _write_on(self) -> None:
        self._write()
        if not self._unsent:
            self._loop.remove_writer(self._socket)
