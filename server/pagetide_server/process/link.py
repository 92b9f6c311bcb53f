"""The API process's ends of the sockets between the two processes; `channels.py` has the other ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import zmq

from ..wire.messages import FromEngine, ToEngine
from .socket_folder import SocketFolder

# Messages handled before other tasks of the event loop get their turn.
DRAIN_AT_ONCE = 32
# How long the last messages of an ended process may take through the socket.
LAST_WORDS_MS = 100


class Link:
    """Sockets in a private folder. Incoming messages are handed to `handle` from the event loop.

    `handle` also hears whether a message is the last one: no other has arrived behind it yet.

    Attributes:
        inputs, outputs: the addresses that the engine process reads from and writes to.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, handle: Callable[[FromEngine, bool], None]) -> None:
        self._loop, self._handle = loop, handle
        self._folder = SocketFolder()
        self.inputs, self.outputs = (f"ipc://{self._folder.path / name}" for name in ("in", "out"))
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._incoming = self._socket(zmq.PULL)
        self._incoming.bind(self.outputs)
        # The receiver binds: a sender that connects queues its messages, whether its peer is there already or no more.
        self._outgoing = self._socket(zmq.PUSH)
        self._outgoing.connect(self.inputs)
        # A message that has been read but not handled.
        self._ahead: bytes | None = None
        # The turn in which the rest is handled, if there is a rest.
        self._again: asyncio.Handle | None = None
        self._descriptor = int(self._incoming.getsockopt(zmq.FD))
        loop.add_reader(self._descriptor, self.receive)

    def send(self, message: ToEngine) -> None:
        """Queue a message for the engine; never blocks."""
        if not self._outgoing.closed:
            self._outgoing.send(self._encoder.encode(message), zmq.NOBLOCK)

    def receive(self) -> None:
        """Handle what has arrived. The socket's descriptor signals an edge, so it is read until it is empty."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._incoming.closed:
            return
        # Whatever becomes of a message, those behind it must not stay where nothing announces them any more.
        self._again = self._loop.call_soon(self.receive)
        raw = self._ahead if self._ahead is not None else self._read()
        for _ in range(DRAIN_AT_ONCE):
            if raw is None:
                self._again.cancel()
                self._again = None
                return
            self._ahead = self._read()
            self._handle(self._decoder.decode(raw), self._ahead is None)
            raw = self._ahead

    def receive_last(self) -> None:
        """Handle what an ended process has left in the socket."""
        raw, self._ahead = self._ahead, None
        while raw is not None or self._incoming.poll(LAST_WORDS_MS):
            self._handle(self._decoder.decode(raw or self._incoming.recv(zmq.NOBLOCK)), False)
            raw = None

    def _read(self) -> bytes | None:
        # Asking is cheaper than the exception of a `recv` that finds nothing.
        if not int(self._incoming.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            return None
        return self._incoming.recv(zmq.NOBLOCK)

    def close(self) -> None:
        """Close the sockets and remove their folder."""
        self._loop.remove_reader(self._descriptor)
        self._incoming.close()
        self._outgoing.close()
        self._context.term()
        self._folder.remove()

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        socket.linger = 0
        return socket
