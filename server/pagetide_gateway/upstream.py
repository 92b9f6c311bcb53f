"""One HTTP exchange with a replica: what is sent, what comes back, and what its failures mean."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterable

import aiohttp
from yarl import URL

from pagetide_spec.names import HEADER_REPLICA, HEADER_REQUEST_ID

from .asgi import RawHeaders
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
# aiohttp writes larger bodies in one go and warns; a stream of bytes it writes in parts.
_LARGE_BODY = 1 << 20


class AttemptFailed(Exception):
    """No response came. `may_have_begun`: the request was sent, so the replica may have started on it."""

    def __init__(self, why: str, *, may_have_begun: bool) -> None:
        self.why, self.may_have_begun = why, may_have_begun
        super().__init__(why)


def make_session() -> aiohttp.ClientSession:
    """A client session for talking to replicas: no limit on connections, no total timeout, bodies as they come."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
    )


def outgoing_headers(headers: Iterable[tuple[bytes, bytes]], request_id: str) -> list[tuple[str, str]]:
    """The client's headers as the replica gets them."""
    kept = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in headers if k not in _NOT_SENT]
    kept.append((HEADER_REQUEST_ID, request_id))
    return kept


def returned_headers(response: aiohttp.ClientResponse, replica: Replica, request_id: str) -> RawHeaders:
    """The replica's headers as the client gets them."""
    kept = [(k.lower(), v) for k, v in response.raw_headers if k.lower() not in _NOT_RETURNED]
    kept.append((HEADER_REPLICA.encode(), replica.name.encode()))
    if HEADER_REQUEST_ID not in response.headers:
        kept.append((HEADER_REQUEST_ID.encode(), request_id.encode("latin-1")))
    return kept


@functools.lru_cache(maxsize=4096)
def _url(base: str, target: str) -> URL:
    return URL(base + target, encoded=True)


async def post(
    session: aiohttp.ClientSession, replica: Replica, target: str, headers: list[tuple[str, str]], body: bytes
) -> aiohttp.ClientResponse:
    """Send the request and return when the response's headers are there; the caller must close or release it.

    Raises:
        AttemptFailed: no response came.
    """
    data = io.BytesIO(body) if len(body) > _LARGE_BODY else body
    try:
        return await session.post(_url(replica.url, target), data=data, headers=headers, allow_redirects=False)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise AttemptFailed(describe(error), may_have_begun=False) from error
    except (aiohttp.ClientError, OSError) as error:
        raise AttemptFailed(describe(error), may_have_begun=True) from error


def describe(error: BaseException) -> str:
    """One line on a failed exchange."""
    if isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError | aiohttp.ClientPayloadError):
        return "the connection was closed"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect to {error.host}:{error.port}"
    return str(error) or type(error).__name__
