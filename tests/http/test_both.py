"""One status, one error object: whether a client asks a server or the gateway before it."""

from __future__ import annotations

import json

import pytest
import uvicorn

from pagetide_gateway.access.keys import KeyRing, make_key
from pagetide_gateway.proxy.forward import Access
from pagetide_gateway.replicas.registry import Registry
from pagetide_gateway.routing.routers import RoundRobin
from pagetide_gateway.serving import server as gateway
from pagetide_gateway.serving.app import Gateway
from pagetide_gateway.web.errors import internal_error
from pagetide_http.protocol import ConnectionLimits
from pagetide_server.api import server
from pagetide_server.api.errors import translate
from pagetide_spec.config import EngineConfig

KEY, HEAD_BYTES, BODY_BYTES, SECONDS = "sk-0123456789", 2000, 1024, 0.4


def server_of_a_model():
    """It loads for ever."""
    config = EngineConfig(model="org/m", header_timeout_s=SECONDS, max_body_mib=BODY_BYTES / 2**20)
    one = server.Server(config, [KEY])
    one._set_up()
    return uvicorn.Server(one._http_config())


def gateway_to_a_model():
    """Which has no replica."""
    registry = Registry(RoundRobin)
    registry.put("m", {})
    access = Access(KeyRing([make_key("a", KEY)]))
    return gateway.GatewayServer(Gateway(registry, max_body=BODY_BYTES, access=access), drain_s=0)


@pytest.fixture(params=[server_of_a_model, gateway_to_a_model], ids=["server", "gateway"])
async def port(request, start, monkeypatch):
    monkeypatch.setattr(server, "MAX_HEAD", HEAD_BYTES)
    monkeypatch.setattr(gateway, "LIMITS", ConnectionLimits(SECONDS, HEAD_BYTES))
    return await start(request.param())


def asked(line: bytes, body: bytes = b"", *, key: str = KEY) -> bytes:
    head = f"host: x\r\nx-request-id: mine\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    return line + b" HTTP/1.1\r\n" + head.encode() + body


COMPLETE = b"POST /v1/completions"
BODY = b'{"model": "m", "prompt": "x"}'
BEGUN = b"GET / HTTP/1.1\r\nx-request-id: mine\r\nhost: x\r\n"
BEARER, SOON = (b"www-authenticate", b"Bearer"), (b"retry-after", None)


@pytest.mark.parametrize(
    ("request_bytes", "status", "kind", "headers"),
    [
        pytest.param(BEGUN + b"\x00\r\n\r\n", 400, "invalid_request_error", [], id="no HTTP"),
        pytest.param(asked(COMPLETE, BODY, key="x"), 401, "authentication_error", [BEARER], id="a wrong key"),
        pytest.param(asked(b"GET /v1/models", key="x"), 401, "authentication_error", [BEARER], id="and of a GET"),
        pytest.param(asked(b"GET /nothing"), 404, "not_found_error", [], id="no such route"),
        pytest.param(asked(b"GET /v1/models/other"), 404, "not_found_error", [], id="no such model"),
        pytest.param(asked(b"POST /livez"), 405, "invalid_request_error", [], id="another method"),
        pytest.param(BEGUN, 408, "timeout_error", [], id="half a head"),
        pytest.param(asked(COMPLETE, BODY + b" " * BODY_BYTES), 413, "invalid_request_error", [], id="a large body"),
        pytest.param(BEGUN + b"x: " + b"x" * HEAD_BYTES, 431, "invalid_request_error", [], id="a large head"),
        pytest.param(asked(COMPLETE, BODY), 503, "service_unavailable_error", [SOON], id="nothing is ready"),
    ],
)
async def test_a_status_has_one_error_object(port, answer_to, request_bytes, status, kind, headers):
    head, _, body = (await answer_to(port, request_bytes)).partition(b"\r\n\r\n")
    line, *lines = head.split(b"\r\n")
    assert line.startswith(b"HTTP/1.1 %d " % status)
    found = dict(each.split(b": ", 1) for each in lines)
    assert (found[b"content-type"], found[b"x-request-id"]) == (b"application/json", b"mine")
    assert [(name, found[name] if value else None) for name, value in headers] == headers
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == kind


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/metrics", "/version", "/v1/models"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_every_response_carries_the_requests_id(port, answer_to, method, path):
    answer = await answer_to(port, asked(f"{method} {path}".encode()))
    assert answer.lower().count(b"\r\nx-request-id: ") == 1
    assert b"\r\nx-request-id: mine\r\n" in answer


def test_a_fault_of_our_own_has_one_too():
    errors = [translate(LookupError("a fault")), internal_error()]
    assert [json.loads(error.body())["error"]["type"] for error in errors] == ["internal_error"] * 2
