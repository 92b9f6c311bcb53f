"""One HTTP exchange with a replica: what is sent, what comes back, and what its failures mean."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import io
import socket
from collections.abc import Iterable
from typing import Any, Literal

import aiohttp
from yarl import URL

from pagetide_http.peers import notice_death
from pagetide_spec.calls import describe_failed_call
from pagetide_spec.names import HEADER_REPLICA, HEADER_REQUEST_ID

from ..web.asgi import RawHeaders
from .registry import Replica

# Headers that belong to one connection and not to the request (RFC 9110, section 7.6.1), and those that each side of
# the gateway makes itself.
_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    )
)
_NOT_SENT = _HOP_BY_HOP | {b"host", b"content-length", b"expect", HEADER_REQUEST_ID.encode()}
_NOT_RETURNED = _HOP_BY_HOP | {b"date", b"server", HEADER_REPLICA.encode()}

CONNECT_TIMEOUT_S = 5.0
# Under the 5 s after which uvicorn closes an idle connection, so that a request seldom meets one that is being closed.
KEEPALIVE_S = 4.0
# How long a replica's machine may leave unanswered what was sent to it.
_SILENCE_S = 30
# aiohttp writes larger bodies in one go and warns; a stream of bytes it writes in parts.
_LARGE_BODY = 1 << 20
# Targets are chosen by clients; only short ones are remembered.
_MOST_CACHED = 200

# What failed when no exchange came about: the replica's process, its machine or the way to it, or something here.
Fault = Literal["process", "machine", "ours"]
_OF_PROCESS = frozenset((errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE))
_OF_MACHINE = frozenset((errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT))


class AttemptFailed(Exception):
    """No response came.

    `may_have_begun`: the request was sent, so the replica may have started on it. `was_closed`: the connection was
    closed under it, as an idle one may be just then. `is_ours`: the fault lies here, and says nothing of the replica.
    """

    def __init__(self, why: str, *, may_have_begun: bool, was_closed: bool = False, is_ours: bool = False) -> None:
        self.why, self.may_have_begun, self.was_closed, self.is_ours = why, may_have_begun, was_closed, is_ours
        super().__init__(why)


def _make_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices within half a minute that the other machine is gone, whether we wait for it or send."""
    family, kind, protocol, *_ = address
    out = socket.socket(family, kind, protocol)
    notice_death(out, _SILENCE_S)
    return out


def make_session() -> aiohttp.ClientSession:
    """A client session for talking to replicas: no limit on connections, no total timeout, bodies as they come."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, socket_factory=_make_socket),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
    )


def outgoing_headers(headers: Iterable[tuple[bytes, bytes]], request_id: str) -> list[tuple[str, str]]:
    """The client's headers as the replica gets them."""
    headers = list(headers)
    left_out = _NOT_SENT | _named_by_connection(headers)
    kept = [(k.decode("latin-1"), _text(v)) for k, v in headers if k not in left_out]
    kept.append((HEADER_REQUEST_ID, request_id))
    return kept


def returned_headers(response: aiohttp.ClientResponse, replica: Replica, request_id: str) -> RawHeaders:
    """The replica's headers as the client gets them."""
    headers = [(k.lower(), v) for k, v in response.raw_headers]
    left_out = _NOT_RETURNED | _named_by_connection(headers)
    kept = [(k, v) for k, v in headers if k not in left_out]
    kept.append((HEADER_REPLICA.encode(), replica.name.encode()))
    if HEADER_REQUEST_ID not in response.headers:
        kept.append((HEADER_REQUEST_ID.encode(), request_id.encode("latin-1")))
    return kept


def _named_by_connection(headers: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    """Headers that `Connection` says belong to this connection."""
    return {name.strip().lower() for key, value in headers if key == b"connection" for name in value.split(b",")}


def _text(value: bytes) -> str:
    """A header's value as text that is sent as the same bytes (UTF-8), if it can be."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _url(base: str, target: str) -> URL:
    if len(target) > _MOST_CACHED or "?" in target:
        return URL(base + target, encoded=True)
    return _short_url(base, target)


@functools.lru_cache(maxsize=4096)
def _short_url(base: str, target: str) -> URL:
    return URL(base + target, encoded=True)


async def post(
    session: aiohttp.ClientSession, replica: Replica, target: str, headers: list[tuple[str, str]], body: bytes
) -> aiohttp.ClientResponse:
    """Send the request and return when the response's headers are there; the caller must close or release it.

    Raises:
        AttemptFailed: no response came.
    """
    data = io.BytesIO(body) if len(body) > _LARGE_BODY else body
    lost = ""

    def lose(why: str) -> None:
        nonlocal lost
        lost = why
        with contextlib.suppress(RuntimeError):  # it is being lost already, or has just ended
            limit.reschedule(0)

    try:
        async with asyncio.timeout(None) as limit:
            with replica.exchange(lose):
                return await session.post(_url(replica.url, target), data=data, headers=headers, allow_redirects=False)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        is_ours = fault_of(error) == "ours"
        raise AttemptFailed(describe_failed_call(error), may_have_begun=False, is_ours=is_ours) from error
    except TimeoutError as error:
        raise AttemptFailed(lost or describe_failed_call(error), may_have_begun=True) from error
    except (aiohttp.ClientError, OSError) as error:
        was_closed = isinstance(error, aiohttp.ServerDisconnectedError | ConnectionError)
        raise AttemptFailed(describe_failed_call(error), may_have_begun=True, was_closed=was_closed) from error


def fault_of(error: BaseException) -> Fault:
    """Where the fault of a failed exchange lies; of an error of the operating system, here if nothing says otherwise.

    A name that is not resolved, too many open files, no free local port: none of it says that a replica is gone.
    """
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, TimeoutError):
        return "machine"
    if isinstance(cause, OSError) and not isinstance(cause, ConnectionError):
        return "machine" if cause.errno in _OF_MACHINE else "process" if cause.errno in _OF_PROCESS else "ours"
    return "process"
