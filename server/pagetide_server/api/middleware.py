"""What surrounds every route: request ids, keys, body size and time, counting, and the access line."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagetide_http.bearer import bearer_key, unauthorized
from pagetide_spec.names import HEADER_REQUEST_ID
from pagetide_spec.web import request_id_of

from .context import Context
from .errors import ApiError, response, translate
from .health import OPEN_PATHS
from .lifecycle import Phase

access = logging.getLogger("pagetide.access")

UNMATCHED = "unmatched"
_FIELD = re.compile(r"[\w.\[\]-]{1,100}", re.ASCII)


def key_matches(authorization: str, keys: Sequence[bytes]) -> bool:
    """Whether an Authorization header brings one of the keys. Looks at all of them, each in constant time."""
    token = bearer_key(authorization)
    # All of them first: stopping at a match would leak by time which key it was.
    matches = [hmac.compare_digest(token, key) for key in keys]
    return any(matches)


# How many times longer than one piece of a body all of it may take: a slow line is no idle one.
BODY_PIECES = 10


class BodyLimit:
    """Hands on a request's body up to a size; each piece in `seconds`, all of it in `BODY_PIECES` times as long."""

    def __init__(self, receive: Receive, limit: int, seconds: float) -> None:
        self._receive, self._limit, self._seconds = receive, limit, seconds
        self._deadline = asyncio.get_running_loop().time() + BODY_PIECES * seconds
        self._size = 0
        self._complete = False

    async def __call__(self) -> Message:
        """The next message of the request.

        Raises:
            ApiError: 413 or 408.
        """
        if self._complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline), asyncio.timeout(self._seconds):
                message = await self._receive()
        except TimeoutError:
            problem = f"{self._seconds:g} s without a piece of it, or {BODY_PIECES * self._seconds:g} s for all of it"
            raise ApiError(408, f"the request's body took too long: {problem} (--header-timeout-s)") from None
        self._size += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._size > self._limit:
            raise too_large(self._limit)
        return message


def too_large(limit: int) -> ApiError:
    """413."""
    return ApiError(413, f"the body is larger than {limit} bytes (--max-body-mib)", code="body_too_large")


class Edge:
    """The outermost ASGI application of a server; `routes` are those of `app`."""

    def __init__(self, app: ASGIApp, context: Context, keys: Sequence[str], routes: Sequence[BaseRoute]) -> None:
        self._app, self._context, self._routes = app, context, routes
        self._keys = [key.encode() for key in keys]
        self._limit = int(context.config.max_body_mib * 2**20)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = _Call(scope, send, request_id_of(Headers(scope=scope).get(HEADER_REQUEST_ID)))
        try:
            await self._answer(scope, receive, call)
        except Exception as error:  # noqa: BLE001 - the last place where it can become an answer
            await call.fail(error, scope, receive)
        finally:
            self._count(scope, call)

    async def _answer(self, scope: Scope, receive: Receive, call: _Call) -> None:
        headers = Headers(scope=scope)
        open_to_all = scope["path"] in OPEN_PATHS
        authorization = headers.get("authorization", "")
        if self._keys and not open_to_all and not key_matches(authorization, self._keys):
            raise unauthorized(bearer_key(authorization))
        if int(headers.get("content-length", "0") or "0") > self._limit:
            call.closes = True
            raise too_large(self._limit)
        limited = BodyLimit(receive, self._limit, self._context.config.header_timeout_s)
        if open_to_all:
            await self._app(scope, limited, call.send)
            return
        with self._context.lifecycle.request():
            await self._app(scope, limited, call.send)

    def _count(self, scope: Scope, call: _Call) -> None:
        route = getattr(scope.get("route"), "path", None) or self._route(scope)
        # 499: the client left before it had an answer.
        code = call.status or 499
        self._context.metrics.http(route, code)
        # Probes and scrapes are not traced.
        if self._context.tracing is not None and scope["path"] not in OPEN_PATHS:
            call.trace_id = self._context.tracing.record(scope, route, code, call.request_id, call.began)
        level = logging.DEBUG if self._is_usual(scope, code) else logging.INFO
        if access.isEnabledFor(level):
            fields = call.fields()
            access.log(level, "%s", _line(scope, code, fields), extra=fields)

    def _is_usual(self, scope: Scope, code: int) -> bool:
        """Whether it is a probe or a scrape, of which many come, and an answer that it must get now."""
        usual = (200,) if self._context.lifecycle.phase is Phase.SERVING else (200, 503)
        return scope["path"] in OPEN_PATHS and code in usual

    def _route(self, scope: Scope) -> str:
        """The path template of a request that was refused before it came to its route."""
        found = (route for route in self._routes if route.matches(scope)[0] is not Match.NONE)
        return getattr(next(found, None), "path", UNMATCHED)


class _Call:
    """One request's way through the application."""

    def __init__(self, scope: Scope, send: Send, request_id: str) -> None:
        self._scope, self._send = scope, send
        self.status = 0
        self.closes = False
        self.trace_id: str | None = None
        self.began = time.monotonic()
        scope.setdefault("state", {})["request_id"] = request_id

    @property
    def request_id(self) -> str:
        """Its id: the header's, or what the body says, or one of ours."""
        return str(self._scope["state"]["request_id"])

    async def send(self, message: Message) -> None:
        """Hand on a message of the response, with the request's id."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers[HEADER_REQUEST_ID] = self.request_id
            if self.closes:
                headers["connection"] = "close"
        await self._send(message)

    async def fail(self, error: Exception, scope: Scope, receive: Receive) -> None:
        """Answer with an error, unless an answer has begun, or nobody is there to read it."""
        if not self.status and not isinstance(error, ClientDisconnect):
            answer = scope["state"]["error"] = translate(error)
            await response(answer)(scope, receive, self.send)

    def fields(self) -> dict[str, Any]:
        """What the access line reports, for structured logs."""
        state = self._scope["state"]
        figures = state.get("figures") or {}
        now = time.monotonic()
        arrival, scheduled, first = (figures.get(k) for k in ("arrival", "scheduled", "first_token"))
        times = {
            "queue_s": scheduled - arrival if scheduled else None,
            "prefill_s": first - scheduled if first and scheduled else None,
            "decode_s": now - first if first else None,
        }
        counts = {k: figures.get(k) for k in ("prompt_tokens", "cached_tokens", "generated_tokens")}
        return {
            "request_id": self.request_id,
            **({"trace_id": self.trace_id} if self.trace_id else {}),
            "seconds": round(now - self.began, 6),
            **{k: round(v, 6) for k, v in times.items() if v is not None},
            **{k: v for k, v in counts.items() if v is not None},
            **_reason(state.get("error")),
        }


def _reason(error: ApiError | None) -> dict[str, str]:
    """Why a request was refused. Whatever a client has sent in place of a field's name stays out of the log."""
    if error is None:
        return {}
    found = {"code": error.code, "param": error.param}
    return {name: value for name, value in found.items() if value and _FIELD.fullmatch(value)}


def _line(scope: Scope, code: int, fields: dict[str, Any]) -> str:
    client = scope.get("client") or ("-", 0)
    figures = " ".join(f"{name}={value}" for name, value in fields.items())
    path = scope["path"][:200].encode("unicode_escape").decode()
    return f"{client[0]} {scope['method']} {path} {code} {figures}"
