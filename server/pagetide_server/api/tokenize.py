"""/tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from .context import context_of
from .decoding import parse
from .errors import invalid
from .openapi import body_of
from .prompts import Prompter
from .protocol import DetokenizeRequest, TokenizeRequest
from .validation import check_token_ids

router = APIRouter()
MAX_DETOKENIZE = 1_000_000


@router.post("/tokenize", **body_of(TokenizeRequest))
async def tokenize(request: Request) -> dict[str, Any]:
    """Token ids of a text or of a chat."""
    context = context_of(request)
    prompter = context.serving()
    body = parse(await request.body(), TokenizeRequest)
    context.check_model(body.model)
    ids = await _ids(prompter, body)
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": context.limits.max_model_len, "tokens": ids}
    if body.return_token_strs:
        answer["token_strs"] = [prompter.tokenizer.token_text(i) for i in ids]
    return answer


async def _ids(prompter: Prompter, body: TokenizeRequest) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise invalid("prompt: give either prompt or messages", "prompt")
    if body.prompt is not None:
        text, special = body.prompt, body.add_special_tokens is not False
    else:
        text, special = await prompter.render(body), bool(body.add_special_tokens)
    (ids,) = await prompter.encode([text], special, room=None)
    return ids


@router.post("/detokenize", **body_of(DetokenizeRequest))
async def detokenize(request: Request) -> dict[str, str]:
    """The text of token ids, special tokens included."""
    context = context_of(request)
    prompter = context.serving()
    body = parse(await request.body(), DetokenizeRequest)
    context.check_model(body.model)
    if len(body.tokens) > MAX_DETOKENIZE:
        raise invalid(f"tokens: {len(body.tokens)} ids; at most {MAX_DETOKENIZE}", "tokens")
    check_token_ids("tokens", body.tokens, context.limits)
    return {"prompt": prompter.tokenizer.decode(body.tokens, skip_special_tokens=False)}
