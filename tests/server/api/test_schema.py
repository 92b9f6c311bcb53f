"""The server against its own OpenAPI document: schemathesis' requests never bring a 5xx nor an undocumented answer."""

from __future__ import annotations

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


EXAMPLES = 25
ROUTES = [
    ("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("POST", "/tokenize"), ("POST", "/detokenize"),
    ("POST", "/v1/embeddings"), ("GET", "/v1/models"), ("GET", "/v1/models/{name}"), ("GET", "/version"),
    ("GET", "/livez"), ("GET", "/readyz"), ("GET", "/health"), ("GET", "/metrics"),
]  # fmt: skip


@pytest.fixture(scope="module")
def schema(server):
    return schemathesis.openapi.from_url(server.url + "/openapi.json")


def test_every_route_of_the_document_is_tested(schema):
    assert {(o.ok().method.upper(), o.ok().path) for o in schema.get_all_operations()} == set(ROUTES)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_request_breaks_the_server(schema, method, path):
    operation = schema[path][method]

    @hypothesis.given(case=operation.as_strategy())
    @hypothesis.settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(hypothesis.HealthCheck), phases=[hypothesis.Phase.generate],
    )  # fmt: skip
    def run(case):
        case.call_and_validate(checks=CHECKS)

    run()
