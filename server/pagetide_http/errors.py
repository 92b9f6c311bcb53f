"""Errors as clients see them: OpenAI error objects, of one form and one type for each status whoever answers."""

from __future__ import annotations

import math

import msgspec

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


class ApiError(Exception):
    """An answer that is an error.

    Attributes:
        status: of HTTP.
        message: for people.
        code: for programs; text or null, since clients of typed languages take no number.
        param: the field at fault.
        headers: beside content type and length.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_s: float | None = None,
    ) -> None:
        """`retry_s`: when the same request may succeed."""
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers: dict[str, str] = {}
        if retry_s is not None:
            self.headers["retry-after"] = str(max(1, math.ceil(retry_s)))
        if status == 401:
            self.headers["www-authenticate"] = "Bearer"

    def body(self) -> bytes:
        """The error object as JSON."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "internal_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def sse(self) -> bytes:
        """The error as the last events of a stream whose status line has already been sent."""
        return b"data: " + self.body() + b"\n\ndata: [DONE]\n\n"
