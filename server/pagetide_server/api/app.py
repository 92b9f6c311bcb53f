"""The FastAPI application of a server."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from pagetide_spec.errors import PagetideError
from pagetide_spec.names import HEADER_REQUEST_ID
from pagetide_spec.web import request_id_of

from . import chat, completions, errors, health, models, tokenize
from .context import Context
from .middleware import Edge
from .openapi import with_bodies
from .protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

BODIES: list[Any] = [CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest]

# What FastAPI would do of its own accord. Newer ones trace each request too, beside our spans, and fail it where a
# variable names a provider that is not there; older ones ignore the argument.
_OFF: dict[str, Any] = {
    "docs_url": None,
    "redoc_url": None,
    "telemetry": dict.fromkeys(("tracing", "metrics", "logs"), False),
}


def create_app(context: Context, keys: list[str]) -> ASGIApp:
    """The application; `keys` are those of which a client must bring one, none meaning open to all."""
    app = FastAPI(title="Pagetide", version=context.version, redirect_slashes=False, **_OFF)
    app.state.context = context
    routers = [part.router for part in (completions, chat, models, tokenize, health)]
    for router in routers:
        app.include_router(router)
    for kind in (errors.ApiError, PagetideError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, errors.handle)
    document = app.openapi
    app.openapi = lambda: with_bodies(document(), BODIES)  # type: ignore[method-assign]
    outer: ASGIApp = Edge(app, context, keys, [route for router in routers for route in router.routes])
    if context.config.cors_origins:
        outer = _Cors(outer, context.config.cors_origins)
    return outer


class _Cors(CORSMiddleware):
    """Answers browsers' questions ahead of a request, which bring no key; `Edge` does not see them."""

    def __init__(self, app: ASGIApp, origins: str) -> None:
        # A browser names an origin without the slash with which its address ends.
        allowed = [origin.strip().rstrip("/") for origin in origins.split(",") if origin.strip()]
        every = ("*",)
        super().__init__(app, allowed, every, every, expose_headers=(HEADER_REQUEST_ID, "retry-after"))

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to such a question."""
        response = super().preflight_response(request_headers)
        response.headers[HEADER_REQUEST_ID] = request_id_of(request_headers.get(HEADER_REQUEST_ID))
        return response
