"""Messages on the stream socket between the two processes: each behind its length. Pure.

No message broker: ZeroMQ's two I/O threads cost a token 0.15 ms.
"""

from __future__ import annotations

HEAD_BYTES = 4
# How much is read at once. A step of a few hundred sequences is a tenth of it.
READ_BYTES = 256 * 1024
# What may lie unread in each direction, as far as the system's own limit (net.core.wmem_max) lets it.
BUFFER_BYTES = 4 * 1024 * 1024


def frame(message: bytes) -> bytes:
    """An encoded message as it is sent.

    Raises:
        OverflowError: it has 4 GiB or more.
    """
    return len(message).to_bytes(HEAD_BYTES, "little") + message


class FrameSplitter:
    """Cuts what has been read into encoded messages; keeps the beginning of one whose end is still to come."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes | memoryview) -> list[bytearray]:
        """The messages that `data` completes, in order."""
        rest = self._rest
        rest += data
        messages = []
        start = 0
        while len(rest) >= start + HEAD_BYTES:
            body = start + HEAD_BYTES
            end = body + int.from_bytes(rest[start:body], "little")
            if len(rest) < end:
                break
            messages.append(rest[body:end])
            start = end
        del rest[:start]
        return messages
