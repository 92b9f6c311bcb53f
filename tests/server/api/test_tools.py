"""Tool calls and reasoning: each format read in pieces of every size, and through the API."""

from __future__ import annotations

import json
import random

import openai
import pytest
from msgspec import UNSET

from pagetide_server.api.protocol import ChatRequest
from pagetide_server.api.reasoning import ThinkParser
from pagetide_server.api.splitting import format_of, splitter_factory, with_forced_call
from pagetide_server.api.structures import asked_structure
from pagetide_server.api.tools.forced import ListParser, NamedParser
from pagetide_server.api.tools.hermes import HermesParser
from pagetide_server.api.tools.llama3 import Llama3Parser
from pagetide_server.api.tools.mistral import MistralParser
from pagetide_server.wire.messages import SamplingParams
from pagetide_spec.config import EngineConfig

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def read(parser, pieces):
    """(content, reasoning, [(name, arguments)]) of a text given in pieces."""
    content = reasoning = ""
    calls = {}
    for number, piece in enumerate(pieces, start=1):
        parts = parser.push(piece, number == len(pieces))
        content, reasoning = content + parts.content, reasoning + parts.reasoning
        for call in parts.tool_calls:
            name, arguments = calls.get(call.index, ("", ""))
            first, more = call.function.name, call.function.arguments
            calls[call.index] = (name + ("" if first is UNSET else first), arguments + ("" if more is UNSET else more))
            assert (call.id is UNSET) is (name != "")
    assert list(calls) == list(range(len(calls)))
    return content, reasoning, list(calls.values())


def cuts(text):
    """The text whole, by single characters, and cut at random."""
    yield [text]
    yield list(text) or [""]
    for seed in range(30):
        rng, rest, pieces = random.Random(seed), text, []
        while rest:
            size = rng.randint(1, 9)
            pieces.append(rest[:size])
            rest = rest[size:]
        yield pieces or [""]


HERMES_TWO = """Let me see.
<tool_call>
{"name": "f", "arguments": {"s": "a \\"}b\\" {", "n": [1, {"x": 2}]} }
</tool_call>
<tool_call>{"arguments": {"y": 1}, "name": "g"}</tool_call>
"""


@pytest.mark.parametrize(
    ("make", "text", "content", "reasoning", "calls"),
    [
        pytest.param(HermesParser, "", "", "", [], id="hermes: nothing"),
        pytest.param(HermesParser, "a <b> c \n", "a <b> c \n", "", [], id="hermes: text only"),
        pytest.param(HermesParser, "a <tool_call", "a <tool_call", "", [], id="hermes: half a mark"),
        pytest.param(
            HermesParser, HERMES_TWO, "Let me see.", "",
            [("f", '{"s": "a \\"}b\\" {", "n": [1, {"x": 2}]}'), ("g", '{"y": 1}')], id="hermes: text and two calls",
        ),
        pytest.param(
            HermesParser, '<tool_call>{"name": "f"}</tool_call>', "", "", [("f", "{}")], id="hermes: no arguments"
        ),
        pytest.param(
            HermesParser, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", "",
            [("f", '{"a": 1}')], id="hermes: arguments as a text",
        ),
        pytest.param(
            HermesParser, '<tool_call>{"name": "f", "arguments": {"a": ', "", "", [("f", '{"a": ')],
            id="hermes: cut by the length",
        ),
        pytest.param(HermesParser, "<tool_call>f(1)</tool_call>", "f(1)", "", [], id="hermes: no object inside"),
        pytest.param(HermesParser, '<tool_call>{"a": 1}</tool_call>', '{"a": 1}', "", [], id="hermes: no call inside"),
        pytest.param(
            HermesParser, "So <tool_call>f(1)</tool_call><tool_call>g</tool_call>", "Sof(1)g", "", [],
            id="hermes: no object inside",
        ),
        pytest.param(MistralParser, "[TOOL_CALLS] f and g", "f and g", "", [], id="mistral: no object behind the mark"),
        pytest.param(MistralParser, "[TOOL_CALLS][]", "", "", [], id="mistral: an empty list"),
        pytest.param(
            Llama3Parser, ' {"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}', "", "",
            [("f", '{"a": 1}'), ("g", "{}")], id="llama3: two calls",
        ),
        pytest.param(
            Llama3Parser, '<|python_tag|>{"name": "f", "parameters": {}}', "", "", [("f", "{}")], id="llama3: a tag"
        ),
        pytest.param(Llama3Parser, 'So {"name": "f"}', 'So {"name": "f"}', "", [], id="llama3: text"),
        pytest.param(Llama3Parser, "<|pyth", "<|pyth", "", [], id="llama3: half a tag"),
        pytest.param(Llama3Parser, '{"answer": 42}', '{"answer": 42}', "", [], id="llama3: another object"),
        pytest.param(
            Llama3Parser, '{"a": [1]}, {"b": 2}; so\n{}\n', '{"a": [1]}, {"b": 2}; so\n{}\n', "", [],
            id="llama3: objects and text",
        ),
        pytest.param(
            Llama3Parser, '{"name": "f", "parameters": {}};\n{"a": 1} ', ';\n{"a": 1} ', "", [("f", "{}")],
            id="llama3: a call and another object",
        ),
        pytest.param(
            Llama3Parser, '{"name": "f", "parameters": {}} It is; ', " It is; ", "", [("f", "{}")],
            id="llama3: text behind a call",
        ),
        pytest.param(Llama3Parser, "<|python_tag|>print({1: 2})", "print({1: 2})", "", [], id="llama3: code"),
        pytest.param(
            MistralParser, 'Ok. [TOOL_CALLS] [{"name": "f", "arguments": {"a": "]"}}, {"name": "g", "arguments": {}}]',
            "Ok.", "", [("f", '{"a": "]"}'), ("g", "{}")], id="mistral: a list",
        ),
        pytest.param(
            MistralParser, '[TOOL_CALLS]f{"a": {"b": "}"}}[TOOL_CALLS]g[ARGS]{}', "", "",
            [("f", '{"a": {"b": "}"}}'), ("g", "{}")], id="mistral: names before objects",
        ),
        pytest.param(MistralParser, "Hi [TOOL", "Hi [TOOL", "", [], id="mistral: half a mark"),
        pytest.param(lambda: NamedParser("f"), '{"a": 1}', "", "",
                     [("f", '{"a": 1}')], id="a named function"),
        pytest.param(
            ListParser, '[{"name":"f","arguments":{"a":1}},{"name":"g","arguments":{}}]', "", "",
            [("f", '{"a":1}'), ("g", "{}")], id="required calls",
        ),
        pytest.param(
            lambda: ThinkParser(False), "<think>\nhm\n</think>\n\nYes", "Yes", "hm", [], id="think: reasoning first"
        ),
        pytest.param(lambda: ThinkParser(False), "No <think>", "No <think>", "", [], id="think: content only"),
        pytest.param(lambda: ThinkParser(True), "hm </thin\n</think>Yes", "Yes", "hm </thin", [], id="think: opened"),
        pytest.param(lambda: ThinkParser(True), "<think>hm</think>Yes", "Yes", "hm", [], id="think: opened twice"),
        pytest.param(lambda: ThinkParser(True), "hm", "", "hm", [], id="think: cut by the length"),
    ],
)  # fmt: skip
def test_the_parts_are_the_same_however_the_text_is_cut(make, text, content, reasoning, calls):
    for pieces in cuts(text):
        assert read(make(), pieces) == (content, reasoning, calls), pieces


@pytest.mark.parametrize(
    ("template", "setting", "found"),
    [
        pytest.param("<tool_call>{{ x }}", "auto", "hermes", id="hermes by its tag"),
        pytest.param("[TOOL_CALLS]", "auto", "mistral", id="mistral by its mark"),
        pytest.param("<|python_tag|>", "auto", "llama3", id="llama3 by its tag"),
        pytest.param("{{ x }}", "auto", "none", id="nothing to go by"),
        pytest.param("<tool_call>", "mistral", "mistral", id="the setting wins"),
    ],
)
def test_the_format_is_set_or_read_off_the_template(template, setting, found):
    assert format_of(EngineConfig(model="m", tool_call_parser=setting), template) == found


NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize(
    ("request_fields", "prompt", "answer", "found"),
    [
        pytest.param({}, "Hi<think>", "hm</think>Yes", ("Yes", "hm", []), id="the template has opened the tag"),
        pytest.param({}, "Hi<think></think>", "Yes", ("Yes", "", []), id="and closed it again"),
        pytest.param({}, "<think>a</think>b<think>", "hm", ("", "hm", []), id="and closed it in an earlier turn"),
        pytest.param({}, "<think>a</think>Ye", "s", ("s", "", []), id="the answer goes on behind its reasoning"),
        pytest.param(
            {"tools": [WEATHER], "tool_choice": NAMED}, "Hi<think>", "{}", ("", "", [("weather", "{}")]),
            id="a named function",
        ),
        pytest.param(
            {"tools": [WEATHER], "tool_choice": "required"}, "Hi<think>", '[{"name": "weather", "arguments": {}}]',
            ("", "", [("weather", "{}")]), id="a required call",
        ),
        pytest.param(
            {"response_format": {"type": "json_object"}}, "Hi<think>", "{}", ("{}", "", []), id="a form of its own"
        ),
    ],
)  # fmt: skip
def test_an_answer_begins_with_reasoning_only_where_it_can(request_fields, prompt, answer, found):
    request = ChatRequest(messages=[], **request_fields)
    params = SamplingParams(structure=with_forced_call(request, asked_structure(request)).structure)
    config = EngineConfig(model="m", reasoning_parser="think_open", tool_call_parser="none")
    make = splitter_factory(config, None, request, params, prompt)
    assert read(make(), [answer]) == found


@pytest.fixture(scope="module")
def hermes(launcher, tiny_model, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "server.log"
    flags = ("--tool-call-parser=hermes", "--reasoning-parser=think", "--max-model-len=1024")
    with (
        launcher(tiny_model, log, *flags, FAKE_STEP_S="0.001") as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        yield server, client


def say(server, text):
    """What makes the fake engine answer with this text."""
    ids = server.post("/tokenize", prompt=text, add_special_tokens=False).json()["tokens"]
    return {"allowed_token_ids": ids}


def ask(client, said, **request):
    request = {"messages": [{"role": "user", "content": "Weather?"}], "tools": [WEATHER], "max_tokens": 300, **request}
    return client.chat.completions.create(model="tiny", extra_body=said, **request)


def add_up(chunks):
    """Message and finish reason that a stream's deltas make."""
    message, calls, reason = {"content": "", "reasoning_content": ""}, {}, None
    for choice in (c for chunk in chunks for c in chunk.choices):
        message["content"] += choice.delta.content or ""
        message["reasoning_content"] += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or []:
            whole = calls.setdefault(call.index, {"id": "", "name": "", "arguments": ""})
            whole["id"] += call.id or ""
            whole["name"] += call.function.name or ""
            whole["arguments"] += call.function.arguments or ""
        reason = choice.finish_reason or reason
    return message, list(calls.values()), reason


TEXT = '<think>Where?</think>I look.\n<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "request_fields", "content", "reasoning", "calls", "reason"),
    [
        pytest.param(TEXT, {}, "I look.", "Where?", [("weather", {"city": "Oslo"})], "tool_calls", id="a call"),
        pytest.param("No.", {}, "No.", "", [], "stop", id="text only"),
        pytest.param(
            TEXT, {"tool_choice": "none"}, TEXT.partition("</think>")[2], "Where?", [], "stop", id="calls switched off"
        ),
        pytest.param(
            TEXT + TEXT.partition("look.")[2], {"parallel_tool_calls": False}, "I look.", "Where?",
            [("weather", {"city": "Oslo"})], "tool_calls", id="one call at most",
        ),
        pytest.param(
            '{"city": "Oslo"}', {"tool_choice": {"type": "function", "function": {"name": "weather"}}}, None, "",
            [("weather", {"city": "Oslo"})], "stop", id="a named function",
        ),
        pytest.param(
            '[{"name": "weather", "arguments": {}}]', {"tool_choice": "required"}, None, "", [("weather", {})],
            "tool_calls", id="a required call",
        ),
    ],
)  # fmt: skip
def test_streamed_calls_add_up_to_the_whole_answer(hermes, text, request_fields, content, reasoning, calls, reason):
    server, client = hermes
    said = say(server, text)
    choice = ask(client, said, **request_fields).choices[0]
    got = [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls or []]
    assert (choice.message.content, got, choice.finish_reason) == (content, calls, reason)
    assert (getattr(choice.message, "reasoning_content", None) or "") == reasoning
    message, streamed, streamed_reason = add_up(ask(client, said, **request_fields, stream=True))
    assert message == {"content": content or "", "reasoning_content": reasoning}
    assert [(c["name"], json.loads(c["arguments"])) for c in streamed] == calls
    assert streamed_reason == reason
    assert all(c["id"] for c in streamed)


def test_tools_reach_the_template(hermes):
    server, _ = hermes
    counts = [
        server.post("/tokenize", messages=[{"role": "user", "content": "x"}], tools=tools).json()["count"]
        for tools in (None, [WEATHER])
    ]
    assert counts[0] < counts[1]


@pytest.mark.parametrize(
    ("request_fields", "named"),
    [
        pytest.param({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice", id="an unknown choice"),
        pytest.param(
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "weather",
            id="a function that is none of the tools",
        ),
        pytest.param({"tools": [{"type": "x"}]}, "tools[0]", id="a tool that is no function"),
        pytest.param(
            {"tools": [WEATHER], "tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice",
            id="a forced call and another form",
        ),
    ],
)  # fmt: skip
def test_wrong_tools_are_refused(server, request_fields, named):
    answer = server.post("/v1/chat/completions", messages=[{"role": "user", "content": "x"}], **request_fields)
    assert answer.status_code == 400
    assert named in answer.json()["error"]["message"]
