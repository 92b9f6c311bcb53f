"""Access lines, structured logs, CORS, the OpenAPI document."""

from __future__ import annotations

import json
import logging

import httpx
import pytest

from pagetide_spec.logs import JsonFormatter

# Of fake_core.py.
RAISE = 382

ORIGIN = "https://app.example"


@pytest.fixture
def access_line(server, wait):
    """The access line of an answer, which is written behind it."""

    def find(answer):
        wanted = f"request_id={answer.headers['x-request-id']} "
        wait(lambda: wanted in server.log.read_text())
        (line,) = [line for line in server.log.read_text().splitlines() if wanted in line]
        return line

    return find


def test_an_access_line_tells_times_and_tokens(launch):
    with launch("--log-format=json") as server:
        head = {"x-request-id": "my-id"}
        server.http.post("/v1/completions", json={"prompt": [300] * 5, "max_tokens": 3, "stream": True}, headers=head)
        assert server.stop() == 0
        lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    (line,) = [line for line in lines if line["logger"] == "pagetide.access"]
    assert line["request_id"] == "my-id"
    assert (line["prompt_tokens"], line["generated_tokens"], line["cached_tokens"]) == (5, 3, 0)
    assert 0 <= line["queue_s"] <= line["seconds"]
    assert line["prefill_s"] > 0 < line["decode_s"]
    assert "POST /v1/completions 200" in line["message"]


REFUSALS = [
    pytest.param({"temperature": 9}, ("invalid_value", "temperature"), id="a wrong value"),
    pytest.param({"max_tokens": 10**6}, ("context_length_exceeded", "max_tokens"), id="too long an answer"),
    pytest.param({"temprature": 1}, ("unknown_field", "temprature"), id="an unknown field"),
    pytest.param({"suffix": "y"}, (None, "suffix"), id="a field without a code"),
    pytest.param({"no name\nPOST /forged": 1}, ("unknown_field", None), id="text in place of a field"),
    pytest.param({"model": "no-such-model"}, ("model_not_found", "model"), id="another model"),
    pytest.param(["a list"], ("invalid_json", None), id="a body that is no object"),
    pytest.param({}, (None, None), id="a request that is answered"),
]


@pytest.mark.parametrize(("fields", "reason"), REFUSALS)
def test_the_access_line_of_a_refusal_says_why(server, access_line, fields, reason):
    body = {"prompt": "x", "max_tokens": 1, **fields} if isinstance(fields, dict) else fields
    line = access_line(server.http.post("/v1/completions", json=body))
    told = dict(field.split("=", 1) for field in line.split() if "=" in field)
    assert (told.get("code"), told.get("param")) == reason
    assert "forged" not in line


def test_the_access_line_of_a_missing_key_says_so_and_in_json_too(launch):
    with launch("--log-format=json", "--api-key=secret") as server:
        assert server.post("/v1/completions", prompt="x").status_code == 401
        assert server.stop() == 0
        lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    (line,) = [line for line in lines if line["logger"] == "pagetide.access"]
    assert line["code"] == "invalid_api_key"
    assert "param" not in line
    assert line["message"].endswith(" code=invalid_api_key")


@pytest.mark.parametrize(("level", "shown"), [("info", False), ("debug", True)])
def test_probes_and_scrapes_do_not_fill_the_log(launch, level, shown):
    with launch(f"--log-level={level}") as server:
        for path in ("/livez", "/readyz", "/health", "/metrics", "/v1/models"):
            assert server.http.get(path).status_code == 200
        assert server.stop() == 0
        log = server.log.read_text()
    assert [f"GET {path} 200" in log for path in ("/livez", "/readyz", "/health", "/metrics")] == [shown] * 4
    assert "GET /v1/models 200" in log


def test_every_line_of_both_processes_is_json(launch):
    with launch("--log-format=json") as server:
        server.post("/v1/completions", prompt=[RAISE])
        assert server.process.wait(10) == 4
        lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    loggers = {line["logger"]: line for line in lines}
    assert {"pagetide", "pagetide.access", "pagetide.engine"} <= loggers.keys()
    assert "a kernel failed" in loggers["pagetide.engine"]["exception"]


def test_what_is_printed_whatever_the_level_is_json_too(launch):
    with launch("--log-format=json", "--log-level=error", ready=False) as server:
        line = json.loads(server.process.stdout.readline())
    assert line["message"].startswith("serving ")
    with launch("--log-format=json", ready=False, FAKE_LOAD_ERROR="setting") as server:
        assert server.process.wait(20) == 2
        *_, last = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert (last["level"], last["logger"]) == ("error", "pagetide")
    assert last["message"].startswith("pagetide serve: ")


def test_a_path_cannot_forge_log_lines(launch):
    with launch() as server:
        server.http.get("/x%0aforged")
        assert server.stop() == 0
        assert not any(line.startswith("forged") for line in server.log.read_text().splitlines())


def test_json_lines_hold_what_a_record_carries():
    record = logging.makeLogRecord(
        {"msg": "a\nb %s", "args": ("c",), "name": "n", "levelname": "INFO", "extra_field": 1}
    )
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line).items() >= {"message": "a\nb c", "logger": "n", "level": "info", "extra_field": 1}.items()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"msg": "half \ud83d"}, {"message": "half \ud83d"}, id="half a surrogate pair"),
        pytest.param(
            {"level": 9, "time": 1, "levelname": "INFO", "created": 2.5},
            {"level": "info", "time": 2.5},
            id="fields of that name",
        ),
    ],
)
def test_no_json_line_is_lost_or_misread(fields, expected):
    line = JsonFormatter().format(logging.makeLogRecord({"msg": "", **fields}))
    assert json.loads(line).items() >= expected.items()


@pytest.mark.parametrize(
    ("flags", "allowed"),
    [
        pytest.param((), None, id="off"),
        pytest.param((f"--cors-origins=https://a.example, {ORIGIN}/",), ORIGIN, id="on, as addresses are copied"),
    ],
)
def test_cors_is_off_unless_asked(launch, flags, allowed):
    with launch(*flags) as server:
        ask = {"origin": ORIGIN, "access-control-request-method": "POST"}
        answer = httpx.options(server.url + "/v1/completions", headers=ask)
        assert answer.headers.get("access-control-allow-origin") == allowed
        assert (answer.status_code == 200) is (allowed is not None)
        assert answer.headers["x-request-id"]
        refused = httpx.post(server.url + "/v1/completions", headers={"origin": ORIGIN}, json={})
        # What a page's script may read of an answer.
        names = ("access-control-allow-origin", "access-control-expose-headers")
        assert [refused.headers.get(name) for name in names] == [allowed, allowed and "x-request-id, retry-after"]


def test_the_openapi_document_has_the_request_bodies(server):
    document = server.http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    body = document["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/CompletionRequest"}
    # Errors have one form, and none is sent that the document leaves out.
    answers = document["paths"]["/v1/models/{name}"]["get"]["responses"]
    assert answers.keys() == {"200", "400", "401", "404", "405", "408", "413", "429", "500", "503"}
    forms = [answer["content"]["application/json"]["schema"] for code, answer in answers.items() if code != "200"]
    assert forms == [{"$ref": "#/components/schemas/Error"}] * 9
    assert not schemas.keys() & {"HTTPValidationError", "ValidationError"}
    temperature = schemas["CompletionRequest"]["properties"]["temperature"]
    assert {"type": "number", "minimum": 0, "maximum": 2} in temperature["anyOf"]
    assert "prompt" in schemas["CompletionRequest"]["required"]
