"""/v1/chat/completions through the official client."""

from __future__ import annotations

import openai
import pytest

MESSAGES = [{"role": "user", "content": "Tell me about the sea"}]


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as found:
        yield found


def ask(client, **request):
    return client.chat.completions.create(**{"model": "tiny", "messages": MESSAGES, "max_tokens": 10, **request})


def test_the_client_knows_its_requests_ids(client):
    assert ask(client, extra_headers={"x-request-id": "my-id"})._request_id == "my-id"
    assert ask(client)._request_id
    with client.chat.completions.with_streaming_response.create(
        model="tiny", messages=MESSAGES, stream=True, extra_headers={"x-request-id": "my-stream"}
    ) as response:
        assert response.request_id == "my-stream"


@pytest.mark.parametrize(
    "request_fields",
    [
        pytest.param({}, id="a plain request"),
        pytest.param({"n": 3}, id="three answers"),
        pytest.param({"logprobs": True}, id="log probabilities of the tokens only"),
        pytest.param({"logprobs": True, "top_logprobs": 4}, id="log probabilities with alternatives"),
        pytest.param({"stop": ["\u2603"]}, id="a stop string that never comes"),
    ],
)
def test_streamed_equals_whole(client, request_fields):
    ask(client, max_tokens=1)  # so that both find the prompt in the cache
    whole = ask(client, **request_fields)
    chunks = list(ask(client, **request_fields, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage == whole.usage
    for choice in whole.choices:
        parts = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(p.delta.content or "" for p in parts) == choice.message.content
        assert [p.finish_reason for p in parts if p.finish_reason] == [choice.finish_reason]
        assert [p.delta.role for p in parts] == ["assistant"] + [None] * (len(parts) - 1)
        assert all(p.delta.content or p.finish_reason for p in parts)
        if choice.logprobs:
            assert [e for p in parts for e in p.logprobs.content] == choice.logprobs.content


def test_best_of_counts_all_and_keeps_n(client):
    answer = ask(client, n=2, max_tokens=3, extra_body={"best_of": 4})
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.completion_tokens == 12


def test_logprobs_have_bytes_and_as_many_alternatives_as_asked(client):
    answer = ask(client, logprobs=True, top_logprobs=2)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    assert b"".join(bytes(e.bytes) for e in entries).decode() == answer.choices[0].message.content
    assert {len(e.top_logprobs) for e in entries} == {2}
    assert {len(e.top_logprobs) for e in ask(client, logprobs=True).choices[0].logprobs.content} == {0}
    assert ask(client).choices[0].logprobs is None


def test_without_a_length_the_window_is_the_limit(server):
    prompt = server.post("/tokenize", messages=MESSAGES).json()["count"]
    answer = server.post("/v1/chat/completions", messages=MESSAGES).json()
    assert answer["usage"]["prompt_tokens"] == prompt
    assert answer["usage"]["total_tokens"] == 512


def test_max_completion_tokens_means_max_tokens(client):
    answer = ask(client, max_tokens=None, max_completion_tokens=4)
    assert answer.usage.completion_tokens == 4


def test_content_may_come_in_parts(server):
    parts = [{"role": "user", "content": [{"type": "text", "text": "Tell me about the sea"}]}]
    both = [server.post("/v1/chat/completions", messages=m, max_tokens=6).json() for m in (MESSAGES, parts)]
    assert both[0]["choices"] == both[1]["choices"]


def test_a_template_that_raises_is_the_clients_mistake(server):
    answer = server.post("/v1/chat/completions", messages=[{"role": "user", "content": "!raise"}])
    assert answer.status_code == 400
    assert "told to raise" in answer.json()["error"]["message"]


def test_ignored_fields_are_accepted(client):
    answer = ask(client, store=False, metadata={"a": "b"}, service_tier="auto", user="u", parallel_tool_calls=True)
    assert answer.usage.completion_tokens == 10


def test_a_model_without_a_template_says_so(launch, tmp_path, tiny_model):
    import json
    import shutil

    bare = tmp_path / "bare"
    shutil.copytree(tiny_model, bare)
    settings = json.loads((bare / "tokenizer_config.json").read_text())
    (bare / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": None}))
    with launch(f"--tokenizer={bare}") as server:
        answer = server.post("/v1/chat/completions", messages=MESSAGES)
        assert answer.status_code == 400
        assert "--chat-template" in answer.json()["error"]["message"]
    with launch(f"--tokenizer={bare}", "--chat-template={{ messages[0].content }}") as server:
        answer = server.post("/v1/chat/completions", messages=MESSAGES, max_tokens=1)
        assert answer.status_code == 200
