"""OpenTelemetry: what is traced, that it arrives by OTLP/HTTP, and that nothing happens unless it is asked for."""

from __future__ import annotations

import http.server
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from pagetide_server.api import tracing

proto = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="install pagetide[otel]")

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
# Of fake_core.py.
FAIL = 381
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Takes OTLP over HTTP."""

    def __init__(self) -> None:
        self.resources: list[dict] = []
        self.spans: list = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.take(self.path, proto.ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def take(self, path: str, request: object) -> None:
        assert path == "/v1/traces"
        for group in request.resource_spans:
            self.resources.append(plain(group.resource.attributes))
            self.spans += [span for scope in group.scope_spans for span in scope.spans]

    def named(self, name: str) -> list:
        return [span for span in self.spans if span.name == name]


def plain(attributes) -> dict:
    def value(any_value):
        kind = any_value.WhichOneof("value")
        found = getattr(any_value, kind)
        return [value(v) for v in found.values] if kind == "array_value" else found

    return {a.key: value(a.value) for a in attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    thread = threading.Thread(target=found.server.serve_forever, args=(0.05,))
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


def test_a_requests_span_tells_tokens_and_phases_and_takes_over_its_parent(launch, collector):
    env = {ENDPOINT: collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_RESOURCE_ATTRIBUTES": "team=tide"}
    with launch("--served-model-name=tiny", FAKE_STEP_S="0.02", **env) as server:
        head = {"traceparent": f"00-{TRACE}-{SPAN}-01", "x-request-id": "mine"}
        body = {"prompt": [300] * 20, "max_tokens": 4, "temperature": 0.5, "seed": 7, "stream": True}
        answer = server.http.post("/v1/completions", json=body, headers=head)
        server.http.get("/metrics")
        assert server.stop() == 0
        log = server.log.read_text()
    (span,) = [s for s in collector.spans if s.parent_span_id.hex() == SPAN]
    assert span.name == "text_completion tiny"
    assert (span.kind, span.trace_id.hex(), span.status.code) == (2, TRACE, 0)
    got = plain(span.attributes)
    assert 0.02 <= got.pop("gen_ai.response.time_to_first_chunk") < 5
    assert got.pop("gen_ai.response.id") in answer.text
    assert got == {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "url.path": "/v1/completions",
        "http.response.status_code": 200,
        "pagetide.request.id": "mine",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "pagetide",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.seed": 7,
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 0,
    }
    children = [s for s in collector.spans if s.parent_span_id == span.span_id]
    assert [c.name for c in children] == ["queue", "prefill", "decode"]
    edges = [span.start_time_unix_nano, *(t for c in children for t in (c.start_time_unix_nano, c.end_time_unix_nano))]
    assert edges == sorted(edges)
    assert children[0].end_time_unix_nano == children[1].start_time_unix_nano
    assert children[-1].end_time_unix_nano <= span.end_time_unix_nano
    # Four tokens, a step of 20 ms each.
    assert children[2].end_time_unix_nano - children[2].start_time_unix_nano > 3 * 0.02 * 1e9
    assert collector.resources[0]["service.name"] == "pagetide"
    assert collector.resources[0]["team"] == "tide"
    assert len(collector.spans) == 4, "probes and scrapes are not traced"
    assert f"trace_id={TRACE}" in log


def test_requests_that_fail_and_clients_that_leave(launch, collector, wait):
    env = {ENDPOINT: collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_SERVICE_NAME": "mine"}
    with launch("--served-model-name=tiny", FAKE_STEP_S="0.02", **env) as server:
        chat = {"messages": [{"role": "user", "content": "hi"}], "n": 2, "max_tokens": 2}
        server.http.post("/v1/chat/completions", json=chat)
        server.http.post("/v1/completions", json={"prompt": 7})
        server.http.get("/no/such")
        assert server.http.post("/v1/completions", json={"prompt": [FAIL], "stream": True}).status_code == 200
        body = {"prompt": [300], "max_tokens": 400, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())
        # The other one was refused before anything was known of it.
        wait(lambda: len(collector.named("text_completion tiny")) == 2, 10)
        assert server.stop() == 0
    (chatted,) = collector.named("chat tiny")
    assert plain(chatted.attributes)["gen_ai.request.choice.count"] == 2
    assert plain(chatted.attributes)["gen_ai.response.finish_reasons"] == ["length"] * 2
    (refused,) = collector.named("POST /v1/completions")
    assert plain(refused.attributes)["error.type"] == "400"
    assert refused.status.code == 0
    (unknown,) = collector.named("GET unmatched")
    assert plain(unknown.attributes)["http.response.status_code"] == 404
    failed, left = collector.named("text_completion tiny")
    assert (plain(failed.attributes)["error.type"], failed.status.code) == ("engine_error", 2)
    assert (plain(left.attributes)["error.type"], left.status.code) == ("client_disconnected", 0)
    assert 0 < plain(left.attributes)["gen_ai.usage.output_tokens"] < 400
    assert collector.resources[0]["service.name"] == "mine"


def test_a_parent_that_is_not_sampled_is_not_traced(launch, collector):
    with launch(**{ENDPOINT: collector.url}) as server:
        head = {"traceparent": f"00-{TRACE}-{SPAN}-00"}
        server.http.post("/v1/completions", json={"prompt": [300], "max_tokens": 1}, headers=head)
        assert server.stop() == 0
    assert collector.spans == []


def test_a_collector_that_is_gone_does_not_keep_the_server(launch):
    with launch(**{ENDPOINT: "http://127.0.0.1:9"}) as server:
        assert server.complete(prompt=[300], max_tokens=1)["usage"]["completion_tokens"] == 1
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("env", "found"),
    [
        pytest.param({}, [], id="nothing is set"),
        pytest.param({ENDPOINT: "http://c:4318"}, ["otlp"], id="an endpoint"),
        pytest.param({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, ["otlp"], id="an endpoint for traces"),
        pytest.param({"OTEL_TRACES_EXPORTER": "otlp"}, ["otlp"], id="an exporter"),
        pytest.param({"OTEL_TRACES_EXPORTER": "console, otlp"}, ["console", "otlp"], id="two exporters"),
        pytest.param({"OTEL_TRACES_EXPORTER": "none", ENDPOINT: "http://c"}, [], id="none"),
        pytest.param({"OTEL_SDK_DISABLED": "True", ENDPOINT: "http://c"}, [], id="disabled"),
        pytest.param({"OTEL_SDK_DISABLED": "false", ENDPOINT: "http://c"}, ["otlp"], id="not disabled"),
        pytest.param({"OTEL_TRACES_EXPORTER": "zipkin"}, [], id="one that is not known"),
        pytest.param({ENDPOINT: " "}, [], id="an empty endpoint"),
        pytest.param({"OTEL_SERVICE_NAME": "x"}, [], id="other variables ask for nothing"),
    ],
)
def test_where_traces_go(env, found):
    assert tracing.exporters(env) == found


def test_a_missing_extra_is_one_warning(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with caplog.at_level(logging.WARNING):
        assert tracing.tracing({ENDPOINT: "http://c"}, "1") is None
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{ENDPOINT} is set, but opentelemetry")
    assert "pip install -e '.[otel]'" in record.getMessage()


@pytest.mark.parametrize(
    "env", [{"OTEL_TRACES_EXPORTER": "zipkin"}, {ENDPOINT: "http://c", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}]
)
def test_what_is_not_supported_is_one_warning(env, caplog, monkeypatch):
    monkeypatch.setattr(
        tracing, "_provider", lambda *_: pytest.importorskip("opentelemetry.sdk.trace").TracerProvider()
    )
    with caplog.at_level(logging.WARNING):
        tracing.tracing(env, "1")
    (record,) = caplog.records
    assert "is not" in record.getMessage()


def test_the_sdk_is_not_imported_unless_it_is_asked_for():
    code = (
        "import sys; from pagetide_server.api import server, tracing; assert tracing.tracing({}, '1') is None;"
        "sys.exit(any(m.startswith(('opentelemetry.sdk', 'opentelemetry.exporter')) for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
