"""API keys as clients send them: `Authorization: Bearer KEY`."""

from __future__ import annotations

from .errors import ApiError


def bearer_key(authorization: str) -> bytes:
    """The key that a header brings, as its bytes were sent; empty if it brings none."""
    scheme, _, key = authorization.partition(" ")
    # Headers are read as Latin-1; strip() without a set would take some of UTF-8's bytes for spaces.
    return key.strip(" \t").encode("latin-1", "replace") if scheme.lower() == "bearer" else b""


def unauthorized(key: bytes) -> ApiError:
    """401: the client sent no key, or one that nobody has."""
    why = "The API key is not valid" if key else "An API key is needed: Authorization: Bearer KEY"
    return ApiError(401, why, code="invalid_api_key")
