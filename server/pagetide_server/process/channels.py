"""The engine process's end of the socket between the two processes; `link.py` has the other end."""

from __future__ import annotations

import select
import socket
import threading
from collections import deque

import msgspec

from ..wire.messages import AbortRequest, AddRequest, FromEngine, Shutdown, ToEngine
from .frames import READ_BYTES, FrameSplitter, frame

# Messages taken in between two steps: a flood of them must not keep the running requests waiting.
READ_AT_ONCE = 64


class ClientGone(BaseException):
    """The API process has ended, so nobody is left to serve or to report.

    No `Exception`: what reports the failures of a core or of its loading must not take it for one of them.
    """


class Channel:
    """Sends to the API process and receives from it. Any thread may send; one reads."""

    def __init__(self, connection: socket.socket) -> None:
        """`connection` is a blocking stream socket, and belongs to the channel from now on."""
        self._socket = connection
        self._sending = threading.Lock()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)
        self._frames = FrameSplitter()
        self._arrived: deque[bytearray] = deque()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def send(self, message: FromEngine) -> None:
        """Send a message, whole and behind those sent before.

        Blocks while the API process has not read what lies in the socket: while that is stopped or falls behind, the
        engine waits, instead of piling up answers. It never waits for the engine in turn, so this always ends.

        Raises:
            ClientGone: nobody will read it.
        """
        with self._sending:
            try:
                self._socket.sendall(frame(self._encoder.encode(message)))
            except ConnectionError as error:
                raise ClientGone from error

    def read(self, timeout_ms: int | None) -> list[AddRequest | AbortRequest | Shutdown]:
        """At most READ_AT_ONCE messages that have arrived; waits up to `timeout_ms` (None: for ever) if there are none.

        May also return none when only a part of a message has come.

        Raises:
            ClientGone: none will come any more.
        """
        if not self._arrived and self._poll.poll(timeout_ms):
            self._receive()
        count = min(READ_AT_ONCE, len(self._arrived))
        return [self._decoder.decode(self._arrived.popleft()) for _ in range(count)]

    def _receive(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except ConnectionError as error:
            raise ClientGone from error
        if not data:
            raise ClientGone
        self._arrived.extend(self._frames.feed(data))
