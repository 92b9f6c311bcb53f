"""OpenTelemetry traces: one span a request, when the standard OTEL_* variables ask for it.

A request's span and its children are made when it has ended, out of times that are kept anyway, so that tracing costs
nothing while tokens flow. OpenTelemetry's SDK is imported only where it is asked for (extra `otel`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.types import Scope

from pagetide_spec.errors import install_hint

from .generation import Generation

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
EXPORTER, DISABLED = "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
SERVICE_NAME = "service.name"
# A collector that is gone must not keep the server from ending.
CLOSE_SECONDS = 3.0
OPERATIONS = {"/v1/completions": "text_completion", "/v1/chat/completions": "chat"}
CLIENT_GONE = "client_disconnected"


def exporters(env: Mapping[str, str]) -> list[str]:
    """Where spans go by these variables: some of "otlp" and "console"; none: there is nothing to trace.

    Unlike the SDK's own default, an endpoint has to be named, or an exporter: a server traces only when asked.
    """
    if env.get(DISABLED, "").strip().lower() == "true":
        return []
    named = env.get(EXPORTER, "").strip()
    if not named:
        return ["otlp"] if any(env.get(name, "").strip() for name in ENDPOINTS) else []
    wanted = [name.strip() for name in named.split(",") if name.strip() not in ("", "none")]
    for name in wanted:
        if name not in ("otlp", "console"):
            log.warning("%s: %r is not known, only otlp, console and none: it gets no traces", EXPORTER, name)
    return [name for name in wanted if name in ("otlp", "console")]


def tracing(env: Mapping[str, str], version: str) -> Tracing | None:
    """What records requests, or None where the environment does not ask for it, or its parts are not installed."""
    wanted = exporters(env)
    if not wanted:
        return None
    protocol = next((env[name] for name in PROTOCOLS if env.get(name)), "http/protobuf")
    if "otlp" in wanted and protocol != "http/protobuf":
        log.warning("%s: %r is not supported: traces go by http/protobuf", PROTOCOLS[1], protocol)
    try:
        return Tracing(_provider(wanted, version))
    except ImportError as error:
        asked = next(name for name in (EXPORTER, *ENDPOINTS) if env.get(name))
        log.warning("%s is set, but %s is not installed: no traces; %s", asked, error.name, install_hint("otel"))
        return None


def _provider(wanted: list[str], version: str) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    # With OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, which win.
    resource = Resource.create({"service.version": version})
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "pagetide"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for name in wanted:
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter() if name == "otlp" else ConsoleSpanExporter()))
    return provider


class Tracing:
    """Makes the spans of ended requests."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import propagate, trace

        self._provider, self._api, self._extract = provider, trace, propagate.extract
        self._tracer = provider.get_tracer("pagetide")

    def record(self, scope: Scope, route: str, code: int, request_id: str, began: float) -> str | None:
        """Make the spans of a request that has ended just now; its trace's id, or None where it is not traced.

        `began`: when it came, in seconds of the monotonic clock.
        """
        state = scope.get("state", {})
        generation = state.get("generation")
        attributes = http_attributes(scope, route, code, request_id)
        name = f"{scope['method']} {route}"
        if generation is not None:
            attributes |= generation_attributes(OPERATIONS.get(route, route), state, generation)
            name = f"{OPERATIONS.get(route, route)} {state['model']}"
        problem = _problem(code, state, generation)
        if problem:
            attributes["error.type"] = problem
        # A client's own mistake, or its leaving, is no error of the server (OpenTelemetry's convention for HTTP).
        is_error = problem not in (None, CLIENT_GONE) and not 400 <= code < 500
        return self._spans(name, scope, attributes, began, generation, is_error)

    def _spans(
        self,
        name: str,
        scope: Scope,
        attributes: dict[str, Any],
        began: float,
        generation: Generation | None,
        is_error: bool,
    ) -> str | None:
        # The spans' clock is the wall's; the request's was the monotonic one.
        offset = time.time_ns() - time.monotonic_ns()
        parent = self._extract(dict(Headers(scope=scope)))
        kind = self._api.SpanKind.SERVER
        span = self._tracer.start_span(name, parent, kind, attributes, start_time=_ns(began) + offset)
        if not span.is_recording():
            return None
        within = self._api.set_span_in_context(span)
        for phase, begin, end in phases(generation) if generation is not None else ():
            child = self._tracer.start_span(phase, within, start_time=_ns(begin) + offset)
            child.end(_ns(end) + offset)
        if is_error:
            span.set_status(self._api.StatusCode.ERROR)
        span.end(time.time_ns())
        return f"{span.get_span_context().trace_id:032x}"

    def close(self) -> None:
        """Send what has not been sent, within a few seconds."""
        # A daemon, which a process that ends does not wait for: the SDK's own time limits are longer than a drain.
        worker = threading.Thread(target=self._provider.shutdown, daemon=True)
        worker.start()
        worker.join(CLOSE_SECONDS)


def http_attributes(scope: Scope, route: str, code: int, request_id: str) -> dict[str, Any]:
    """What any HTTP server records of a request."""
    return {
        "http.request.method": scope["method"],
        "http.route": route,
        "url.path": scope["path"],
        "http.response.status_code": code,
        "pagetide.request.id": request_id,
    }


def generation_attributes(operation: str, state: Mapping[str, Any], generation: Generation) -> dict[str, Any]:
    """OpenTelemetry's conventions for generative AI (development status, as of 1.40), as far as the server knows."""
    params = generation.runs[0].prompt.params
    reasons = [answer.finish_reason for run in generation.runs for answer in run.answers]
    first = [run.record.first_at - run.record.arrival for run in generation.runs if run.record.first_at]
    found: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "pagetide",
        "gen_ai.request.model": state["model"],
        "gen_ai.response.model": state["model"],
        "gen_ai.response.id": state["response_id"],
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k if params.top_k > 0 else None,
        "gen_ai.request.seed": params.seed,
        "gen_ai.request.choice.count": params.n if params.n > 1 else None,
        "gen_ai.response.finish_reasons": [reason for reason in reasons if reason] or None,
        "gen_ai.usage.input_tokens": generation.prompt_tokens,
        "gen_ai.usage.output_tokens": generation.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": generation.cached_tokens,
        "gen_ai.response.time_to_first_chunk": min(first) if first else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def phases(generation: Generation) -> list[tuple[str, float, float]]:
    """The times that a request spent in the queue, in prefill and in decode, as far as it came: (name, begin, end).

    Several prompts count as one: from the first that began to the last that ended.
    """
    records = [run.record for run in generation.runs]
    now = time.monotonic()
    ended = max(record.ended_at or now for record in records)
    scheduled = min((r.scheduled for r in records if r.scheduled), default=None)
    first = min((r.first_at for r in records if r.first_at), default=None)
    found = [("queue", min(r.submitted for r in records), scheduled or ended)]
    if scheduled is not None:
        found.append(("prefill", scheduled, first or ended))
    if first is not None:
        found.append(("decode", first, ended))
    return found


def _problem(code: int, state: Mapping[str, Any], generation: Generation | None) -> str | None:
    """Why a request failed, in a word: a status, a client that left, or an error after the first token."""
    if state.get("client_gone") or code == 499:
        return CLIENT_GONE
    if code >= 400:
        return str(code)
    if generation is not None and any(run.record.reason == "error" for run in generation.runs):
        return "engine_error"
    return None


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
