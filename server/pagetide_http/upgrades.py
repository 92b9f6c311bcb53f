"""Passes over a client's offer to change the protocol (RFC 9110, 7.8): no other one is spoken here.

Java's client needs it, which offers HTTP/2 with its first request. The parser takes such a request to end with its
head.
"""

from __future__ import annotations

from collections.abc import Callable

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_FRAMING = (b"content-length", b"transfer-encoding")


def pass_over(protocol: HttpToolsProtocol, rest: bytes) -> bytes:
    """Give `protocol` a new parser, and return what it is to read of `rest`, which came behind the offer's head."""
    protocol.parser = httptools.HttpRequestParser(_Resumed(protocol))
    framing = [b"%b: %b\r\n" % header for header in protocol.headers if header[0] in _FRAMING]
    return b"POST / HTTP/1.1\r\n%b\r\n%b" % (b"".join(framing), rest)


class _Resumed:
    """What a parser calls that starts behind the head of a request: for that one, only its body is reported."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol, self._in_head = protocol, True
        self.on_message_begin = self._behind_head(protocol.on_message_begin)
        self.on_url = self._behind_head(protocol.on_url)
        self.on_header = self._behind_head(protocol.on_header)
        self.on_body, self.on_message_complete = protocol.on_body, protocol.on_message_complete

    def on_headers_complete(self) -> None:
        if not self._in_head:
            self._protocol.on_headers_complete()
        self._in_head = False

    def _behind_head(self, call: Callable[..., None]) -> Callable[..., None]:
        def told(*args: bytes) -> None:
            if not self._in_head:
                call(*args)

        return told
