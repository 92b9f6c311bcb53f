"""Errors that the gateway itself answers with, as OpenAI error objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pagetide_http.errors import ApiError as ApiError

# How long a client may wait before it asks again: a model takes seconds to load, a drained replica is replaced sooner.
RETRY_AFTER_S = 5


def bad_request(message: str, param: str | None = None) -> ApiError:
    """400: the request cannot be routed."""
    return ApiError(400, message, code="invalid_request", param=param)


def model_not_found(model: str, known: Iterable[str]) -> ApiError:
    """404: no service has this name; names those that exist."""
    names = ", ".join(known) or "none"
    message = f"The model `{_short(model)}` does not exist. Models here: {_short(names, 500)}"
    return ApiError(404, message, code="model_not_found", param="model")


def model_ambiguous(model: str, keys: Sequence[str]) -> ApiError:
    """404: several services serve a model of this name."""
    message = f"Several services serve `{_short(model)}`; ask for one of them: {_short(', '.join(keys), 500)}"
    return ApiError(404, message, code="model_not_found", param="model")


# What a key may run into.
AT_ONCE, A_MINUTE = KEY_LIMITS = ("concurrency_limit_exceeded", "rate_limit_exceeded")


def too_many_at_once(name: str, limit: int) -> ApiError:
    """429: the key has as many requests under way as it may."""
    message = f"The key `{name}` may have {limit} requests under way at once"
    return ApiError(429, message, code=AT_ONCE, retry_s=1)


def too_many_a_minute(name: str, limit: float, retry_s: float) -> ApiError:
    """429: the key's requests come too fast; says when the next one may come."""
    message = f"The key `{name}` may send {limit:g} requests a minute"
    return ApiError(429, message, code=A_MINUTE, retry_s=retry_s)


def too_many_held(model: str) -> ApiError:
    """503: as many requests as may be held wait for this service already."""
    message = f"`{model}` is waking, and as many requests as this gateway holds wait already"
    return ApiError(503, message, code="too_many_held", retry_s=RETRY_AFTER_S)


def held_too_long(model: str, seconds: float, states: Iterable[str]) -> ApiError:
    """503: no replica came in time."""
    why = "; ".join(states) or "it has no replicas yet"
    message = f"No replica of `{model}` became ready within {seconds:g} s: {why}"
    return ApiError(503, message, code="no_ready_replica", retry_s=RETRY_AFTER_S)


def route_not_found(method: str, path: str) -> ApiError:
    """404: no such path."""
    return ApiError(404, f"No such route: {method} {_short(path)}", code="not_found")


def method_not_allowed(method: str, path: str) -> ApiError:
    """405: the path exists under another method."""
    return ApiError(405, f"{path} does not take {method}", code="method_not_allowed")


def body_too_large(limit: int) -> ApiError:
    """413: the request body is over the limit (bytes)."""
    return ApiError(413, f"The request body is larger than {limit} bytes", code="body_too_large")


def body_too_slow(seconds: float) -> ApiError:
    """408: nothing more of the body came for so long, or not the whole of it."""
    return ApiError(408, f"The request's body did not come within {seconds:g} s", code="request_timeout")


def no_ready_replica(model: str, states: Iterable[str], broken: str = "") -> ApiError:
    """503: the service exists, but nothing of it can answer now; says what its replicas wait for.

    `broken`: why none will ever be ready; then it is of no use to ask again.
    """
    if broken:
        return ApiError(503, f"No replica of `{model}` can start: {_short(broken, 1000)}", code="no_ready_replica")
    why = "; ".join(states) or "it has no replicas"
    return ApiError(503, f"No replica of `{model}` is ready: {why}", code="no_ready_replica", retry_s=RETRY_AFTER_S)


def queue_full(model: str, replica: str) -> ApiError:
    """429: the replica's queue is full, and no other takes the request."""
    message = f"The queue of `{model}` at {replica} is full, and no other replica takes the request"
    return ApiError(429, message, code="queue_full", retry_s=RETRY_AFTER_S)


def bodies_too_large() -> ApiError:
    """503: the bodies of all requests together take as much memory as they may."""
    message = "The gateway has as many large requests as it can hold"
    return ApiError(503, message, code="too_many_bodies", retry_s=RETRY_AFTER_S)


def internal_error() -> ApiError:
    """500: a fault of the gateway; the log says more, under the request's id."""
    return ApiError(500, "The gateway failed at this request", code="internal_error")


def draining() -> ApiError:
    """503: this gateway is about to end."""
    return ApiError(503, "The gateway is shutting down", code="draining", retry_s=RETRY_AFTER_S)


def upstream_failed(replica: str, why: str) -> ApiError:
    """502: the replica broke off before the first byte and no other could take over."""
    return ApiError(
        502, f"Replica {replica} failed before it answered: {why}", code="upstream_failed", retry_s=RETRY_AFTER_S
    )


def stream_broken(replica: str, why: str) -> ApiError:
    """The replica broke off in the middle of an answer; sent as an SSE event."""
    return ApiError(502, f"Replica {replica} failed in the middle of the answer: {why}", code="upstream_failed")


def _short(text: str, length: int = 200) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
