"""Requests to what the engine is asked: pure functions."""

from __future__ import annotations

import json
import time

import msgspec
import pytest

from pagetide_server.api.decoding import parse
from pagetide_server.api.errors import ApiError
from pagetide_server.api.middleware import key_matches
from pagetide_server.api.protocol import ChatRequest, CompletionRequest
from pagetide_server.api.splitting import showing_calls, with_forced_call
from pagetide_server.api.structures import FREE, asked_structure
from pagetide_server.api.validation import Limits, answer_length, sampling_params

LIMITS = Limits(max_model_len=100, vocab_size=50, max_n=8)
SCHEMA = {"type": "object"}
RUNS = range(5)


def test_a_huge_name_is_refused_about_as_fast_as_it_is_read():
    """Everyone else's tokens wait for it."""
    raw = b'{"' + b"k" * 20_000_000 + b'":1}'

    def seconds(act, error):
        began = time.process_time()
        with pytest.raises(error):
            act()
        return time.process_time() - began

    # The best of five each: others use the machine too.
    read = min(seconds(lambda: msgspec.json.decode(raw, type=CompletionRequest), msgspec.ValidationError) for _ in RUNS)
    assert min(seconds(lambda: parse(raw, CompletionRequest), ApiError) for _ in RUNS) < 5 * read


def completion(**fields):
    return parse(json.dumps({"prompt": "x", **fields}).encode(), CompletionRequest)


def chat(**fields):
    return parse(json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode(), ChatRequest)


def params(**fields):
    return sampling_params(completion(**fields), LIMITS)


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        pytest.param({}, "temperature", 1.0, id="the default temperature"),
        pytest.param({"temperature": 0}, "temperature", 0.0, id="greedy"),
        pytest.param({"top_k": None}, "top_k", 0, id="null is as good as nothing"),
        pytest.param({"stop": "a"}, "stop", ("a",), id="one stop string"),
        pytest.param({"stop": ["a", "b"]}, "stop", ("a", "b"), id="two stop strings"),
        pytest.param({"logit_bias": {"7": -100}}, "logit_bias", {7: -100.0}, id="a bias"),
        pytest.param({}, "seed", None, id="no seed, whatever the server's: equal requests get answers of their own"),
        pytest.param({"seed": 0}, "seed", 0, id="seed zero is a seed"),
        pytest.param({"allowed_token_ids": [3, 4]}, "allowed_token_ids", (3, 4), id="the only tokens"),
        pytest.param({"seed": -3}, "seed", -3, id="a negative seed"),
        pytest.param({"logprobs": 0}, "logprobs", 0, id="no alternatives"),
        pytest.param({"best_of": 3}, "logprobs", 0, id="choosing needs log probabilities"),
        pytest.param({"best_of": 1}, "logprobs", None, id="nothing to choose from"),
        pytest.param({"echo": True, "logprobs": 2}, "prompt_logprobs", 2, id="an echo with log probabilities"),
        pytest.param({"echo": True}, "prompt_logprobs", None, id="an echo without"),
        pytest.param({"min_tokens": 3}, "min_tokens", 3, id="a least length"),
    ],
)
def test_fields_become_parameters(fields, name, value):
    assert getattr(params(**fields), name) == value


@pytest.mark.parametrize(
    ("fields", "kind", "value"),
    [
        pytest.param({"response_format": {"type": "text"}}, None, None, id="text"),
        pytest.param({"response_format": {"type": "json_object"}}, "json_object", "", id="any object"),
        pytest.param(
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}, "json",
            '{"type":"object"}', id="a schema",
        ),
        pytest.param({"guided_json": SCHEMA}, "json", '{"type":"object"}', id="guided by a schema"),
        pytest.param({"guided_json": '{"type": "object"}'}, "json", '{"type":"object"}', id="guided by a text"),
        pytest.param({"guided_regex": "a+"}, "regex", "a+", id="guided by a regex"),
        pytest.param({"guided_choice": ["a", "b"]}, "choice", '["a","b"]', id="guided by a choice"),
        pytest.param({"guided_grammar": "start: x"}, "grammar", "start: x", id="guided by a grammar"),
        pytest.param({"structured_outputs": {"choice": ["a"]}}, "choice", '["a"]', id="the newer form"),
        pytest.param(
            {"structured_outputs": {"json_object": True}}, "json", '{"type":"object"}', id="the newer form, an object"
        ),
        pytest.param(
            {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?"}}, "json",
            '{"type":"object","x-guidance":{"whitespace_pattern":" ?"}}', id="JSON, white space as told",
        ),
        pytest.param(
            {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}}, "json",
            '{"type":"object","x-guidance":{"whitespace_pattern":""}}', id="JSON without white space",
        ),
    ],
)  # fmt: skip
def test_forms_become_a_structure(fields, kind, value):
    found = asked_structure(completion(**fields)).structure
    assert (found and found.kind, found and found.value) == (kind, value)


def test_two_forms_at_once_are_refused():
    with pytest.raises(ApiError, match="only one"):
        asked_structure(completion(guided_regex="a", guided_choice=["a"]))


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
NAMED = {"type": "function", "function": {"name": "f"}}


def test_a_forced_call_has_a_structure():
    field, named = with_forced_call(chat(tools=TOOLS, tool_choice=NAMED), FREE)
    assert field == "tools[0].function.parameters"
    assert json.loads(named.value) == {"x-guidance": {"whitespace_pattern": " ?"}, **SCHEMA}
    field, required = with_forced_call(chat(tools=TOOLS, tool_choice="required"), FREE)
    assert field == "tools"
    assert json.loads(required.value)["minItems"] == 1
    _, single = with_forced_call(chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False), FREE)
    assert json.loads(single.value)["maxItems"] == 1
    for choice in ("auto", "none"):
        assert with_forced_call(chat(tools=TOOLS, tool_choice=choice), FREE) is FREE


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        pytest.param({"tool_choice": "required"}, True, id="a forced call"),
        pytest.param({}, True, id="the model decides"),
        pytest.param({"tool_choice": "none"}, False, id="no call"),
        pytest.param({"skip_special_tokens": True}, False, id="asked for"),
    ],
)
def test_marks_of_calls_are_in_the_text(fields, shown):
    request = chat(tools=TOOLS, **fields)
    assert showing_calls(request, sampling_params(request, LIMITS)).skip_special_tokens is not shown


@pytest.mark.parametrize(
    ("prompt_len", "wanted", "default", "length"),
    [
        pytest.param(10, 5, 16, 5, id="what was asked for"),
        pytest.param(10, None, 16, 16, id="the default"),
        pytest.param(10, None, None, 90, id="all that is left"),
        pytest.param(95, None, 16, 5, id="the default, cut"),
        pytest.param(95, 5, 16, 5, id="exactly what is left"),
        pytest.param(99, None, 16, 1, id="one token"),
    ],
)
def test_an_answer_fits_into_the_window(prompt_len, wanted, default, length):
    assert answer_length(prompt_len, wanted, default, LIMITS) == length


@pytest.mark.parametrize(
    ("authorization", "matches"),
    [
        ("Bearer one", True), ("bearer two", True), ("Bearer  two ", True), ("Bearer three", False), ("one", False),
        ("Basic one", False), ("", False), ("Bearer", False), ("Bearer é", False), ("Bearer one two", False),
        # The last bytes of these in UTF-8 are spaces in Latin-1.
        ("Bearer voilà", True), ("Bearer \tvoilà\t", True), ("Bearer Å", True), ("Bearer Ã", False),
    ],
)  # fmt: skip
def test_keys(authorization, matches):
    keys = [key.encode() for key in ("one", "two", "voilà", "Å")]
    assert key_matches(authorization.encode().decode("latin-1"), keys) is matches
