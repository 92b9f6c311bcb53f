"""The API process's ends of the sockets between the two processes; `channels.py` has the other ends."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable

import msgspec
import zmq

from ..wire.messages import FromEngine, ToEngine

# Messages handled before other tasks of the event loop get their turn.
DRAIN_AT_ONCE = 32
# How long the last messages of an ended process may take through the socket.
LAST_WORDS_MS = 100


class Link:
    """Sockets in a private folder. Incoming messages are handed to `handle` from the event loop.

    Attributes:
        inputs, outputs: the addresses that the engine process reads from and writes to.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, handle: Callable[[FromEngine], None]) -> None:
        self._loop, self._handle = loop, handle
        self.folder = tempfile.mkdtemp(prefix="pagetide-")
        self.inputs, self.outputs = f"ipc://{self.folder}/in", f"ipc://{self.folder}/out"
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._incoming = self._socket(zmq.PULL)
        self._incoming.bind(self.outputs)
        # The receiver binds: a sender that connects queues its messages, whether its peer is there already or no more.
        self._outgoing = self._socket(zmq.PUSH)
        self._outgoing.connect(self.inputs)
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
        for _ in range(DRAIN_AT_ONCE):
            try:
                raw = self._incoming.recv(zmq.NOBLOCK)
            except zmq.Again:
                self._again.cancel()
                self._again = None
                return
            self._handle(self._decoder.decode(raw))

    def receive_last(self) -> None:
        """Handle what an ended process has left in the socket."""
        while self._incoming.poll(LAST_WORDS_MS):
            self._handle(self._decoder.decode(self._incoming.recv(zmq.NOBLOCK)))

    def close(self) -> None:
        """Close the sockets and remove their folder."""
        self._loop.remove_reader(self._descriptor)
        self._incoming.close()
        self._outgoing.close()
        self._context.term()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set_hwm(0)
        socket.linger = 0
        return socket
