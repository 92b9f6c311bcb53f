"""What a server's clients get wrong, or it itself, as errors with the right status: translated once, here."""

from __future__ import annotations

import http
import logging
from collections.abc import Mapping

from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from pagetide_http.errors import ApiError as ApiError
from pagetide_spec.errors import PagetideError, shorten

from ..process.client import EngineDead
from ..wire.messages import SequenceOutput

log = logging.getLogger(__name__)

# Retry-After of a client: as long as others wait now, up to a limit; where none are known, a moment.
RETRY_AFTER_SECONDS = 1
MAX_RETRY_AFTER_SECONDS = 60


def response(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """The whole HTTP answer."""
    return Response(error.body(), error.status, {**error.headers, **(headers or {})}, "application/json")


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the client must change its request."""
    return ApiError(400, message, param=param, code=code)


def wrong(name: str, value: object, problem: str) -> ApiError:
    """400 for the value of a field."""
    return invalid(f"{name}: {shorten(value)}: {problem}", name, "invalid_value")


def unavailable(message: str) -> ApiError:
    """503: try again later, or elsewhere."""
    return ApiError(503, message, code="unavailable", retry_s=RETRY_AFTER_SECONDS)


def refusal(output: SequenceOutput, expected_wait: float, structure_field: str) -> ApiError:
    """The engine's error output as an answer.

    Args:
        expected_wait: the seconds that a request waits now.
        structure_field: what of the request asked for a structure; empty: nothing did.
    """
    if output.error_kind == "invalid":
        return invalid(output.error)
    if output.error_kind == "structure":
        return invalid(f"{structure_field}: {output.error}", structure_field, "invalid_value")
    if output.error_kind == "queue_full":
        return ApiError(429, output.error, code="queue_full", retry_s=min(expected_wait, MAX_RETRY_AFTER_SECONDS))
    # Whatever the engine raised: it may tell of other requests, of paths, of the machine.
    log.error("request %s: the engine failed: %s", output.request_id, output.error)
    message = "the engine failed on this request; the server's log has the details under the request's id"
    return ApiError(500, message, code="engine_error")


def translate(error: BaseException) -> ApiError:
    """Any exception of a handler as an answer. What nobody expected is logged, and its text kept from the client."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineDead):
        return unavailable(f"the engine is gone: {error}")
    if isinstance(error, ClientDisconnect):
        return ApiError(499, "the client has left")  # never read by anybody
    if isinstance(error, PagetideError):
        return invalid(str(error), getattr(error, "field", None))
    if isinstance(error, HTTPException):
        phrase = http.HTTPStatus(error.status_code).phrase
        return ApiError(error.status_code, f"{phrase}: {error.detail}" if error.detail != phrase else phrase)
    log.error("unexpected error", exc_info=error)
    return ApiError(500, "internal error; the server's log has the details", code="internal_error")


async def handle(request: Request, error: Exception) -> Response:
    """FastAPI exception handler for every kind of error; the request keeps it for its access line."""
    if isinstance(error, RequestValidationError):
        return response(invalid("; ".join(str(e.get("msg")) for e in error.errors())))
    answer = request.state.error = translate(error)
    if isinstance(error, HTTPException) and error.status_code in (404, 405):
        answer.message = f"{answer.message}: {request.method} {request.url.path}"
        return response(answer, error.headers)
    return response(answer)
