"""/livez, /readyz, /health and /metrics: open to all, and quick whatever the engine does."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from pagetide_spec.names import PATH_HEALTH, PATH_LIVE, PATH_METRICS, PATH_READY

from .context import context_of
from .metrics import CONTENT_TYPE

_UNHEALTHY: dict[int | str, dict[str, Any]] = {503: {"description": "Why not", "content": {"text/plain": {}}}}
router = APIRouter(default_response_class=PlainTextResponse, responses=_UNHEALTHY)
OPEN_PATHS = frozenset({PATH_LIVE, PATH_READY, PATH_HEALTH, PATH_METRICS})


@router.head(PATH_LIVE, include_in_schema=False)
@router.get(PATH_LIVE)
async def live(request: Request) -> Response:
    """200 unless a restart is the only cure. Loading and draining are alive."""
    engine = context_of(request).engine
    engine.refresh()
    return _answer(engine.why_unhealthy())


@router.head(PATH_READY, include_in_schema=False)
@router.get(PATH_READY)
async def ready(request: Request) -> Response:
    """200 while requests are taken."""
    return _answer(context_of(request).why_unready())


@router.head(PATH_HEALTH, include_in_schema=False)
@router.get(PATH_HEALTH)
async def health(request: Request) -> Response:
    """The same as /readyz, under the name that vLLM's users know."""
    return _answer(context_of(request).why_unready())


@router.head(PATH_METRICS, include_in_schema=False)
@router.get(PATH_METRICS)
async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    return Response(context_of(request).metrics.render(), headers={"content-type": CONTENT_TYPE})


def _answer(problem: str | None) -> Response:
    return PlainTextResponse(problem or "ok", 503 if problem else 200)
