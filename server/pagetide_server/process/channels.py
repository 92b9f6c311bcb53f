"""The engine process's ends of the sockets between the two processes; `link.py` has the other ends."""

from __future__ import annotations

import msgspec
import zmq

from ..wire.messages import AbortRequest, AddRequest, FromEngine, Shutdown, ToEngine

LINGER_MS = 2000
# Messages taken in between two steps: a flood of them must not keep the running requests waiting.
READ_AT_ONCE = 64


class Outbox:
    """Sends messages to the API process; each thread needs its own."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.set_hwm(0)
        self._socket.linger = LINGER_MS
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: FromEngine) -> None:
        """Queue a message for sending; never blocks."""
        self._socket.send(self._encoder.encode(message))


class Inbox:
    """Receives the API process's messages."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self._socket = context.socket(zmq.PULL)
        self._socket.set_hwm(0)
        self._socket.bind(address)
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def read(self, timeout_ms: int | None) -> list[AddRequest | AbortRequest | Shutdown]:
        """At most READ_AT_ONCE messages that have arrived; waits up to `timeout_ms` (None: for ever) for the first."""
        messages: list[AddRequest | AbortRequest | Shutdown] = []
        if not self._socket.poll(timeout_ms):
            return messages
        while len(messages) < READ_AT_ONCE:
            try:
                messages.append(self._decoder.decode(self._socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                break
        return messages
