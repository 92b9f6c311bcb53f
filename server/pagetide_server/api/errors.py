"""Errors as clients see them: OpenAI error objects with the right status, translated once, here."""

from __future__ import annotations

import http
import logging
import math
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from pagetide_spec.errors import PagetideError, shorten

from ..process.client import EngineDead
from ..wire.messages import SequenceOutput, Structure

log = logging.getLogger(__name__)

# Retry-After of a client: as long as others wait now, within these bounds.
RETRY_AFTER_SECONDS = 1
MAX_RETRY_AFTER_SECONDS = 60
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "internal_error",
    503: "service_unavailable_error",
}


class ApiError(Exception):
    """An answer that is an error: its HTTP status, and the fields of OpenAI's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        # Text or null: clients of typed languages take no number for `code`.
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers: dict[str, str] = {}
        if retry_after is not None:
            seconds = min(max(math.ceil(retry_after), RETRY_AFTER_SECONDS), MAX_RETRY_AFTER_SECONDS)
            self.headers["retry-after"] = str(seconds)

    def body(self) -> dict[str, Any]:
        """The error object."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "internal_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        """The whole HTTP answer."""
        content = msgspec.json.encode(self.body())
        return Response(content, self.status, {**self.headers, **(headers or {})}, "application/json")


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the client must change its request."""
    return ApiError(400, message, param=param, code=code)


def wrong(name: str, value: object, problem: str) -> ApiError:
    """400 for the value of a field."""
    return invalid(f"{name}: {shorten(value)}: {problem}", name, "invalid_value")


def unavailable(message: str) -> ApiError:
    """503: try again later, or elsewhere."""
    return ApiError(503, message, code="unavailable", retry_after=RETRY_AFTER_SECONDS)


def refusal(output: SequenceOutput, expected_wait: float, structure: Structure | None = None) -> ApiError:
    """The engine's error output as an answer.

    Args:
        expected_wait: the seconds that a request waits now.
        structure: what the answer was to look like.
    """
    if output.error_kind == "invalid":
        return invalid(output.error)
    if output.error_kind == "structure":
        field = structure.field if structure else ""
        return invalid(f"{field}: {output.error}" if field else output.error, field or None, "invalid_value")
    if output.error_kind == "queue_full":
        return ApiError(429, output.error, code="queue_full", retry_after=expected_wait)
    return ApiError(500, output.error or "the engine failed on this request", code="engine_error")


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
    """FastAPI exception handler for every kind of error."""
    if isinstance(error, RequestValidationError):
        return invalid("; ".join(str(e.get("msg")) for e in error.errors())).response()
    answer = translate(error)
    if isinstance(error, HTTPException) and error.status_code in (404, 405):
        answer.message = f"{answer.message}: {request.method} {request.url.path}"
        return answer.response(error.headers)
    return answer.response()
