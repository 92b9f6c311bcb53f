"""The FastAPI application of a server."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from pagetide_spec.errors import PagetideError

from . import chat, completions, errors, health, models, tokenize
from .context import Context
from .middleware import Edge
from .openapi import with_bodies
from .protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

BODIES: list[Any] = [CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest]


def create_app(context: Context, keys: list[str]) -> ASGIApp:
    """The application; `keys` are those of which a client must bring one, none meaning open to all."""
    app = FastAPI(title="Pagetide", version=context.version, docs_url=None, redoc_url=None, redirect_slashes=False)
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
        outer = CORSMiddleware(outer, **_cors(context.config.cors_origins))
    return outer


def _cors(origins: str) -> dict[str, Any]:
    allowed = [origin.strip() for origin in origins.split(",") if origin.strip()]
    return {"allow_origins": allowed, "allow_methods": ["*"], "allow_headers": ["*"]}
