"""/v1/models, /version, and what does not exist here."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from .context import context_of
from .errors import ApiError, unavailable
from .openapi import ERRORS

router = APIRouter(responses=ERRORS)


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The one model served here."""
    return {"object": "list", "data": [_card(request)]}


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> dict[str, Any]:
    """The model served here, by its name."""
    context_of(request).check_model(name)
    return _card(request)


@router.get("/version")
async def version(request: Request) -> dict[str, str]:
    """Pagetide's version."""
    return {"version": context_of(request).version}


@router.post("/v1/embeddings")
async def embeddings() -> None:
    """Refused: no model served here makes embeddings."""
    raise ApiError(400, "embeddings are not supported; this server completes text", code="unsupported")


def _card(request: Request) -> dict[str, Any]:
    context = context_of(request)
    if context.prompter is None:
        raise unavailable("the model is still loading")
    return {
        "id": context.model_name,
        "object": "model",
        "created": context.created,
        "owned_by": "pagetide",
        "root": context.config.model,
        "parent": None,
        "max_model_len": context.limits.max_model_len,
        # Ours alone: a load generator can make prompts of exact length without a tokenizer.
        "vocab_size": context.limits.vocab_size,
    }
