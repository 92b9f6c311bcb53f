"""The gateway as an ASGI app: the hot path first, everything else through Starlette."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pagetide_spec.names import HEADER_REQUEST_ID, PATH_HEALTH, PATH_LIVE, PATH_METRICS, PATH_READY
from pagetide_spec.web import request_id_of

from ..metrics import GatewayMetrics
from ..polling.figures import FigureReader
from ..polling.health import HealthPoller
from ..proxy.attempts import Attempts
from ..proxy.forward import DEFAULT_ALL_BODIES, DEFAULT_MAX_BODY, OPEN, Access, Forwarder, unknown
from ..proxy.hold import DEFAULT_HOLD, Holder, HoldLimits
from ..replicas.registry import Registry
from ..replicas.upstream import make_session
from ..web.asgi import Message, Receive, Scope, Send, has_body, header, send_error
from ..web.errors import ApiError, draining, method_not_allowed, route_not_found
from .page import Page

# Answered to the end: they say how this process does.
_OPEN_PATHS = frozenset((PATH_LIVE, PATH_READY, PATH_HEALTH, PATH_METRICS))
# Longer than a long prompt's prefill on a server that shows no counters.
DEFAULT_STALL_S = 60.0
_TOKEN_PATHS = frozenset(("/tokenize", "/detokenize"))


def _version_here() -> str:
    try:
        return version("pagetide")
    except PackageNotFoundError:  # run from its sources
        return "unknown"


_VERSION = _version_here()


class Gateway:
    """ASGI app over a registry that its owner keeps up to date.

    `extra_routes` are the owner's own, such as the local runner's `/status`; `is_synced` is true once
    the owner has registered all services. Connections to replicas and the health
    poller live as long as the app's lifespan.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        max_body: int = DEFAULT_MAX_BODY,
        all_bodies: int = DEFAULT_ALL_BODIES,
        access: Access = OPEN,
        hold: HoldLimits = DEFAULT_HOLD,
        stall_s: float = DEFAULT_STALL_S,
        is_synced: Callable[[], bool] = lambda: True,
        extra_routes: Sequence[BaseRoute] = (),
    ) -> None:
        self.registry = registry
        self.is_draining = False
        self._metrics = GatewayMetrics(registry)
        self._max_body, self._all_bodies, self._access, self._stall_s = max_body, all_bodies, access, stall_s
        self._holder = Holder(hold, lambda: self.is_draining)
        self._is_synced = is_synced
        self._page = Page(registry, access.keys)
        self._forward: Forwarder | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._rest = Starlette(
            routes=[*self._routes(), *extra_routes],
            lifespan=self._lifespan,
            exception_handlers={HTTPException: _http_error, ApiError: _api_error},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward what replicas answer; leave the rest to Starlette."""
        if scope["type"] == "http" and self.is_draining and scope["path"] not in _OPEN_PATHS:
            # Not to be asked again on this connection, but on one that another gateway takes.
            self._metrics.answered("", 503)
            await send_error(send, draining(), _id_headers(scope), is_last=True)
        elif scope["type"] == "http" and scope["method"] == "POST" and self._forward and _is_forwarded(scope["path"]):
            await self._forward(scope, receive, send)
        elif refusal := self._refusal(scope):
            self._metrics.answered("", refusal.status)
            await send_error(send, refusal, _id_headers(scope), is_last=has_body(scope))
        else:
            await self._rest(scope, receive, send if scope["type"] != "http" else _with_id(send, scope))

    def _refusal(self, scope: Scope) -> ApiError | None:
        """Why a request for the models is refused."""
        if scope["type"] != "http" or self._access.keys is None or not scope["path"].startswith("/v1/"):
            return None
        try:
            self._access.keys.identify(header(scope["headers"], b"authorization"))
        except ApiError as error:
            return error
        return None

    def cut(self) -> None:
        """End the requests that are still at replicas; their clients get an error."""
        for _, replica in self.registry.replicas():
            replica.draining = True  # none is to take over
            replica.lose("the gateway is shutting down")

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async with make_session() as session:
            attempts = Attempts(session, self._metrics, self._holder)
            self._forward = Forwarder(
                self.registry, attempts, self._metrics, self._access, self._max_body, self._all_bodies
            )
            reader = FigureReader(self.registry, session, self._metrics, self._stall_s)
            poller = HealthPoller(self.registry, session, self._access.upstream_key)
            works = (poller.run(), reader.run(), self._page.run())
            tasks = self._tasks = [asyncio.create_task(work) for work in works]
            try:
                yield
            finally:
                self._tasks = []
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def check_tasks(self) -> None:
        """Nothing, as long as the background tasks run.

        Raises:
            Exception: what one of them died of.
        """
        for task in self._tasks:
            if task.done():
                task.result()

    def _routes(self) -> list[BaseRoute]:
        return [
            Route("/v1/models", self._models),
            Route("/v1/models/{model:path}", self._model),
            Route("/version", self._version),
            Route(PATH_LIVE, self._live),
            Route(PATH_READY, self._ready),
            Route(PATH_HEALTH, self._ready),
            Route(PATH_METRICS, self._show_metrics),
            *self._page.routes(),
        ]

    async def _models(self, request: Request) -> Response:
        """All services, ready or not: one that is waking is still there to be asked."""
        entries = [service.describe() for service in self.registry.services.values()]
        return JSONResponse({"object": "list", "data": entries})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["model"]
        service = self.registry.find(name)
        if service is None:
            raise unknown(self.registry, name)
        return JSONResponse(service.describe())

    async def _version(self, request: Request) -> Response:
        """Pagetide's version, as a server reports it."""
        return JSONResponse({"version": _VERSION})

    async def _live(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        """Ready to take requests; whether a model is ready is each service's own matter."""
        if self.is_draining:
            return JSONResponse({"status": "draining"}, status_code=503)
        if not self._is_synced():
            return JSONResponse({"status": "waiting for the cluster's services"}, status_code=503)
        return JSONResponse({"status": "ready"})

    async def _show_metrics(self, request: Request) -> Response:
        return Response(self._metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _is_forwarded(path: str) -> bool:
    return path.startswith("/v1/") or path in _TOKEN_PATHS


def _id_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    name = HEADER_REQUEST_ID.encode()
    return [(name, request_id_of(header(scope["headers"], name)).encode())]


def _with_id(send: Send, scope: Scope) -> Send:
    """`send`, which adds the request's id to the head of the response."""

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *_id_headers(scope)]
        await send(message)

    return send_with_id


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own 404 and 405 as error objects."""
    if isinstance(error, HTTPException) and error.status_code == 405:
        return await _api_error(request, method_not_allowed(request.method, request.url.path))
    return await _api_error(request, route_not_found(request.method, request.url.path))


async def _api_error(request: Request, error: Any) -> Response:
    return Response(error.body(), error.status, error.headers, "application/json")
