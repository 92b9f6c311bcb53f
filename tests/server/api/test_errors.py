"""What clients get wrong: an OpenAI error object with the right status that names the field. Never a 500."""

from __future__ import annotations

import json

import pytest

from .asking import error_of

INT64 = 2**63
# Of fake_core.py.
FAIL = 381
COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]


VALUES = [
    ("temperature", [-1, -0.001, 2.5, "hot", [1], 1e9, True]),
    ("top_p", [0, -0.1, 1.1, "x"]),
    ("top_k", [-2, 1.5, "x", 2**40]),
    ("min_p", [-0.1, 1.1, "x"]),
    ("presence_penalty", [-2.1, 2.1]),
    ("frequency_penalty", [-2.1, 2.1]),
    ("repetition_penalty", [0, -1]),
    ("n", [0, -1, 129, 10**9, 10**30, 1.5, "x"]),
    ("best_of", [0, 129]),
    ("max_tokens", [0, -1, 1.5, "x", 10**6, INT64, 10**40]),
    ("min_tokens", [-1, 5, "x"]),
    ("seed", [1.5, "x", INT64]),
    ("stop", [5, [1, 2], {"a": 1}, "", [""], ["x"] * 65, "x" * 5000]),
    ("allowed_token_ids", [[], [-1], [400], ["x"], 5]),
    ("request_id", ["", "a b", "x" * 200, "a\r\nb", 5]),
    ("stop_token_ids", [[-1], [400], [10**9], [2**70], ["x"], 5]),
    ("logit_bias", [{"5": 101}, {"5": -101}, {"400": 1}, {"-1": 1}, {"x": 1}, {"5": "x"}, {"²": 1}, [5]]),
    ("logit_bias", [{"9" * 30: 1}]),
    ("logprobs", [-1, 21, 10**6, "x"]),
    ("prompt_logprobs", [-1, 21]),
    ("bad_words", [[""], "x", [5], ["x"] * 65, ["x" * 300], ["x " * 100] * 10_000]),
    ("priority", ["x", 2**40]),
    ("cache_salt", [5]),
    ("echo", ["yes"]),
    ("stream", ["yes", 1]),
    ("suffix", ["y"]),
    ("stream_options", [{"include_usage": True}, 5]),
    ("response_format", [{"type": "xml"}, {"type": "json_schema"}, 5]),
    ("response_format", [{"type": "json_schema", "json_schema": {"schema": 5}}]),
    ("guided_json", ["{", 5]),
    ("guided_choice", [[], [""], "x"]),
    ("guided_regex", ["", 5]),
    ("structured_outputs", [{}, {"xml": "a"}, 5, {"json": {}, "disable_additional_properties": True}]),
    ("structured_outputs", [{"regex": "a", "whitespace_pattern": " "}, {"json": {}, "json_object": True}]),
    ("no_such_field", [1]),
    ("truncate_prompt_tokens", [0, -1]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [pytest.param(f, v, id=f"{f} = {repr(v)[:40]}") for f, values in VALUES for v in values],
)
def test_wrong_values_are_refused_by_name(server, field, value):
    answer = server.post(COMPLETION, **{"prompt": "Hello", "max_tokens": 4, field: value})
    error_of(answer, 400, field)


@pytest.mark.parametrize(
    ("field", "value", "more"),
    [
        pytest.param("top_logprobs", -1, {"logprobs": True}, id="negative"),
        pytest.param("top_logprobs", 10**6, {"logprobs": True}, id="huge"),
        pytest.param("top_logprobs", 3, {"logprobs": False}, id="without logprobs"),
        pytest.param("logprobs", 3, {}, id="a count where chat wants true or false"),
        pytest.param("messages", [], {}, id="no messages"),
        pytest.param("messages", [{"content": "x"}], {}, id="a message without a role"),
        pytest.param("messages", [{"role": "user", "content": 5}], {}, id="content that is a number"),
        pytest.param("messages", [{"role": "user", "content": [{"type": "image_url"}]}], {}, id="an image"),
        pytest.param("messages", ["x"], {}, id="a message that is a text"),
        pytest.param("messages", [{"role": "assistant", "tool_calls": 5}], {}, id="tool calls that are a number"),
        pytest.param("chat_template", "{{ 1 }}", {}, id="a template that comes with the request"),
        pytest.param("tool_choice", "required", {}, id="a forced call without tools"),
        pytest.param("tools", [{"type": "function", "function": {"name": "a b"}}], {}, id="a tool with a bad name"),
        pytest.param("max_tokens", 0, {}, id="no tokens"),
        *[
            pytest.param("chat_template_kwargs", {name: value}, {}, id=f"{name} as a variable of the template")
            for name, value in {
                "template": "x",
                "tools": [],
                "messages": HI,
                "tokenizer": 1,
                "add_generation_prompt": True,
                "continue_final_message": True,
                "documents": [],
                "self": 1,
            }.items()
        ],
    ],
)
def test_wrong_chat_values_are_refused_by_name(server, field, value, more):
    error_of(server.post(CHAT, **{"messages": HI, **more, field: value}), 400, field)
    if field == "chat_template_kwargs":
        error_of(server.post("/tokenize", messages=HI, chat_template_kwargs=value), 400, field)


WRONG_PROMPTS = [None, [], [[]], {"a": 1}, 5, [1.5], ["a", 1], [400], [-1], [2**70], [[1], []], [[1], "a"], [True]]


@pytest.mark.parametrize("prompt", WRONG_PROMPTS, ids=repr)
def test_wrong_prompts_are_refused(server, prompt):
    error_of(server.post(COMPLETION, prompt=prompt), 400, "prompt")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        pytest.param("functions", [{"name": "f"}], "functions: is not supported; use tools", id="functions"),
        pytest.param(
            "function_call", "auto", "function_call: is not supported; use tool_choice", id="a call of a function"
        ),
        pytest.param("audio", {"voice": "alloy"}, "audio: is not supported", id="sound"),
        pytest.param("web_search_options", {}, "web_search_options: is not supported", id="a search"),
    ],
)
def test_what_is_not_supported_may_be_null_and_is_named(server, field, value, said):
    assert server.post(CHAT, messages=HI, max_tokens=1, **{field: None}).status_code == 200
    error = error_of(server.post(CHAT, messages=HI, **{field: value}), 400, field)
    assert (error["message"], error["param"]) == (said, field)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        pytest.param(
            CHAT,
            {"messages": HI, "modalities": ["text", "audio"]},
            "modalities[1]: 'audio': must be text",
            id="a choice",
        ),
        pytest.param(
            COMPLETION,
            {"prompt": "x", "max_tokens": 0},
            "max_tokens: 0: must be at least 1; 0, for the prompt alone, needs echo to be true",
            id="no tokens",
        ),
    ],
)
def test_a_wrong_value_is_told_with_what_would_be_right(server, path, body, said):
    error = error_of(server.post(path, **body), 400)
    assert (error["message"], error["code"]) == (said, "invalid_value")


def test_a_misspelt_field_gets_a_suggestion(server):
    error = error_of(server.post(COMPLETION, prompt="x", temprature=1), 400, "temprature")
    assert "did you mean temperature?" in error["message"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "n", "seed", "max_tokens", "presence_penalty"])
def test_numbers_that_json_does_not_have_are_refused(server, field, number):
    body = f'{{"prompt": "x", "{field}": {number}}}'
    error_of(server.http.post(COMPLETION, content=body), 400, field)


@pytest.mark.parametrize("end", ["", ", ", "x" * 20], ids=["at the end", "near the end", "far from the end"])
def test_half_a_surrogate_pair_is_told_wherever_it_stands(server, end):
    """As a browser writes a text that was cut inside an emoji."""
    body = f'{{"prompt": "\\ud83d{end}"}}'
    error = error_of(server.http.post(COMPLETION, content=body), 400)
    assert "surrogate pair" in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="half an object"),
        pytest.param(b"[1]", id="a list"),
        pytest.param(b'"x"', id="a text"),
        pytest.param(b'{"prompt": "\xff"}', id="no UTF-8"),
        pytest.param(b'{"prompt": "\\ud800"}', id="half a surrogate pair"),
        pytest.param(b"[" * 100_000, id="lists nested 100,000 deep"),
        pytest.param(b'{"a":' * 100_000, id="objects nested 100,000 deep"),
        pytest.param(b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="a prompt nested 100,000 deep"),
        pytest.param(b'{"prompt":"x","guided_json":' + b'{"a":' * 3000 + b"1" + b"}" * 3001, id="a deep schema"),
    ],
)
def test_bodies_that_are_no_request_are_refused(server, body):
    error_of(server.http.post(COMPLETION, content=body), 400)
    assert server.complete(prompt="x", max_tokens=1)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETION, {"prompt": "x"}), (COMPLETION, {"prompt": "x", "stream": True}), (CHAT, {"messages": HI}),
        ("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [5]}),
    ],
)  # fmt: skip
def test_another_model_is_not_found(server, path, body):
    error = error_of(server.post(path, model="no-such-model", **body), 404, "no-such-model")
    assert error["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404), ("GET", COMPLETION, 405), ("DELETE", "/v1/models", 405), ("POST", "/livez", 405),
        ("GET", "/v1/models/other", 404), ("POST", COMPLETION + "/", 404),
    ],
)  # fmt: skip
def test_wrong_routes_are_error_objects_too(server, method, path, status):
    error_of(server.http.request(method, path), status)


def test_probes_may_ask_for_the_head_only(server):
    for path in ("/livez", "/readyz", "/health", "/metrics"):
        answer = server.http.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


def test_embeddings_are_refused_clearly(server):
    error_of(server.post("/v1/embeddings", input="x"), 400, "embeddings")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_engines_refusal_is_an_http_error(server, stream):
    error_of(server.post(COMPLETION, prompt="x", guided_grammar="wrong", stream=stream), 400, "grammar")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        pytest.param("wrong", "the grammar is wrong", id="when it is compiled"),
        pytest.param("endless", "the grammar has no end", id="by the answer"),
    ],
)
@pytest.mark.parametrize(
    ("field", "body"),
    [
        pytest.param("guided_grammar", lambda text: text, id="of the older names"),
        pytest.param("structured_outputs.grammar", lambda text: {"grammar": text}, id="of the newer form"),
    ],
)
def test_a_fault_of_a_structure_names_the_field_that_asked_for_it(server, field, body, value, problem, stream):
    request = {"prompt": "x", field.partition(".")[0]: body(value), "stream": stream}
    answer = server.post(COMPLETION, **request)
    # Behind the first token it is an event.
    assert answer.status_code == (200 if stream and value == "endless" else 400)
    text = answer.text
    error = json.loads(text.removesuffix("data: [DONE]\n\n").strip().split("data: ")[-1])["error"]
    assert (error["param"], error["message"]) == (field, f"{field}: {problem}")
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_value")


@pytest.mark.parametrize(
    ("choice", "field"),
    [
        pytest.param("required", "tools", id="any of them"),
        pytest.param({"type": "function", "function": {"name": "f"}}, "tools[1].function.parameters", id="a named one"),
    ],
)
def test_a_fault_of_a_forced_call_names_the_tools(server, choice, field):
    tools = [{"function": {"name": "e"}}, {"function": {"name": "f", "parameters": {"const": "wrong"}}}]
    error = error_of(server.post(CHAT, messages=HI, tools=tools, tool_choice=choice), 400)
    assert (error["param"], error["message"]) == (field, f"{field}: the grammar is wrong")


def test_a_failure_before_the_first_token_is_an_http_error_later_an_event(server):
    error_of(server.post(COMPLETION, prompt=[FAIL]), 500, "the engine failed")
    text = server.post(COMPLETION, prompt=[FAIL], stream=True).text
    events = [e.removeprefix("data: ") for e in text.strip().split("\n\n")]
    assert events[-1] == "[DONE]"
    assert "the engine failed" in json.loads(events[-2])["error"]["message"]
    assert all("error" not in json.loads(e) for e in events[:-2])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_what_the_engine_raised_is_in_the_log_under_the_requests_id_and_not_in_the_answer(server, stream):
    """It may tell of other requests, of paths, of the machine."""
    answer = server.post(COMPLETION, prompt=[FAIL], stream=stream)
    assert "out of luck" not in answer.text
    lines = [line for line in server.log.read_text().splitlines() if answer.headers["x-request-id"] in line]
    assert any("out of luck" in line for line in lines)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        pytest.param(b"my-id-7", True, id="a plain one"),
        pytest.param(b"x" * 4000, False, id="a long one"),
        pytest.param("é漢".encode(), False, id="no ASCII"),
        pytest.param(b'a b;c="d"', False, id="with blanks"),
        pytest.param(b"", False, id="an empty one"),
    ],
)
def test_request_ids_are_taken_over_or_made(server, given, kept):
    answer = server.http.post(COMPLETION, json={"prompt": "x"}, headers=[(b"x-request-id", given)])
    assert answer.status_code == 200
    assert (answer.headers["x-request-id"].encode() == given) is kept


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_request_id_in_the_body_names_the_answer(server, stream):
    body = {"prompt": "x", "request_id": "mine-7", "stream": stream}
    answer = server.post(COMPLETION, **body)
    assert answer.headers["x-request-id"] == "mine-7"
    assert '"id":"cmpl-mine-7"' in answer.text
    both = server.http.post(COMPLETION, json=body, headers={"x-request-id": "the-header-s"})
    assert both.headers["x-request-id"] == "the-header-s"
