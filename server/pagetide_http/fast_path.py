"""The fast path of a stream's events to their socket: past `send` and all that wraps it.

Offered to the application as an ASGI extension; without it events are just sent.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

# Name of the ASGI extension; its value is what a `FastPath` is made of, for most requests need none.
FAST_PATH = "pagetide.fast_path"


class FastPath:
    """Writes pieces of one response's body."""

    __slots__ = ("_cycle", "_flow", "_transport")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle, self._flow, self._transport = cycle, cycle.flow, cycle.transport

    def is_free(self) -> bool:
        """Whether a piece can be written without waiting: the response runs, and its client reads."""
        if self._flow.write_paused or self._transport.is_closing():
            return False
        cycle = self._cycle
        return cycle.response_started and not cycle.response_complete and bool(cycle.chunked_encoding)

    def write(self, data: bytes) -> None:
        """Write a piece, which must not be empty; only while `is_free`."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))
