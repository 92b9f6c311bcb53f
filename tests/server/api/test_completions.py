"""/v1/completions through the official client: forms, and streaming against the whole answer."""

from __future__ import annotations

import openai
import pytest

PROMPT = "The old harbour"


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as found:
        yield found


def whole_and_streamed(client, **request):
    """A whole answer, and the same request as a list of chunks."""
    request = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, **request}
    client.completions.create(**{**request, "n": 1, "max_tokens": 1})  # so that both find the prompt in the cache
    whole = client.completions.create(**request)
    return whole, list(client.completions.create(**request, stream=True, stream_options={"include_usage": True}))


def joined(chunks, index=0):
    return "".join(c.text for chunk in chunks for c in chunk.choices if c.index == index)


def reasons(chunks, index=0):
    return [c.finish_reason for chunk in chunks for c in chunk.choices if c.index == index and c.finish_reason]


@pytest.mark.parametrize(
    "request_fields",
    [
        pytest.param({}, id="a plain request"),
        pytest.param({"n": 3}, id="three answers"),
        pytest.param({"prompt": ["The old", "In the market"], "n": 2}, id="two prompts, two answers each"),
        pytest.param({"echo": True}, id="with echo"),
        pytest.param({"echo": True, "logprobs": 2}, id="with echo and log probabilities"),
        pytest.param({"logprobs": 3}, id="with log probabilities"),
        pytest.param({"max_tokens": 1}, id="a single token"),
        pytest.param({"extra_body": {"return_token_ids": True}}, id="with token ids"),
    ],
)
def test_streamed_equals_whole(client, request_fields):
    whole, chunks = whole_and_streamed(client, **request_fields)
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    for choice in whole.choices:
        assert joined(chunks, choice.index) == choice.text
        assert reasons(chunks, choice.index) == [choice.finish_reason]
        parts = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        if choice.logprobs:
            for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                assert [x for p in parts for x in getattr(p.logprobs, field)] == getattr(choice.logprobs, field)
        if getattr(choice, "token_ids", None):
            assert [i for p in parts for i in p.token_ids] == choice.token_ids


def test_a_text_offset_is_a_place_in_the_text_though_tokens_hold_parts_of_characters(client):
    text = "Der größte 🙂 market"
    (choice,) = client.completions.create(model="tiny", prompt=text, max_tokens=0, echo=True, logprobs=0).choices
    pairs = list(zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True))[1:]
    assert [token for token, _ in pairs if token.startswith("bytes:")]
    whole = [(token, at) for token, at in pairs if not token.startswith("bytes:")]
    assert [choice.text[at : at + len(token)] for token, at in whole] == [token for token, _ in whole]


def test_usage_only_when_asked_for(client):
    chunks = list(client.completions.create(model="tiny", prompt=PROMPT, max_tokens=3, stream=True))
    assert [c.usage for c in chunks] == [None] * len(chunks)


def test_continuous_usage_grows_with_the_text(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        client.completions.create(model="tiny", prompt=PROMPT, max_tokens=5, stream=True, stream_options=options)
    )
    counts = [c.usage.completion_tokens for c in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 5


def test_indexes_are_prompt_major(server):
    both = server.complete(prompt=["The old", "In the"], n=2, max_tokens=4)["choices"]
    alone = [server.complete(prompt=p, n=2, max_tokens=4)["choices"] for p in ("The old", "In the")]
    assert [c["index"] for c in both] == [0, 1, 2, 3]
    assert [c["text"] for c in both] == [c["text"] for group in alone for c in group]


def test_a_prompt_of_ids_is_its_text(server):
    ids = server.post("/tokenize", prompt=PROMPT).json()["tokens"]
    text, by_ids, in_list = (server.complete(prompt=p, max_tokens=5) for p in (PROMPT, ids, [ids]))
    assert text["choices"] == by_ids["choices"] == in_list["choices"]
    assert text["usage"]["prompt_tokens"] == len(ids)


def test_echo_without_tokens_scores_the_prompt(server):
    answer = server.complete(prompt=PROMPT, echo=True, max_tokens=0, logprobs=1)
    choice = answer["choices"][0]
    assert choice["text"] == PROMPT
    assert answer["usage"]["completion_tokens"] == 0
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert choice["finish_reason"] == "length"


def test_best_of_counts_all_and_keeps_n(server):
    answer = server.complete(prompt=PROMPT, n=2, best_of=4, max_tokens=3, logprobs=0)
    assert [c["index"] for c in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 12


def test_stop_string_across_tokens_leaves_nothing(server, client):
    text = server.complete(prompt=PROMPT, max_tokens=12)["choices"][0]["text"]
    for begin in range(3, 20, 4):
        stop = text[begin : begin + 5]
        whole, chunks = whole_and_streamed(client, stop=stop)
        assert whole.choices[0].text == joined(chunks) == text[: text.find(stop)]
        assert whole.choices[0].finish_reason == "stop"
        assert whole.choices[0].stop_reason == stop
        assert chunks[-1].usage == whole.usage


def test_included_stop_string_is_the_end(server):
    text = server.complete(prompt=PROMPT, max_tokens=12)["choices"][0]["text"]
    stop = text[8:12]
    cut = server.complete(prompt=PROMPT, max_tokens=12, stop=[stop], include_stop_str_in_output=True)
    assert cut["choices"][0]["text"] == text[: text.find(stop) + 4]


@pytest.mark.parametrize("stop", [None, "\u2603\u2603"], ids=["no stop string", "a stop string that never comes"])
def test_no_empty_chunks(client, stop):
    chunks = list(client.completions.create(model="tiny", prompt=PROMPT, max_tokens=12, stream=True, stop=stop))
    assert all(c.text or c.finish_reason for chunk in chunks for c in chunk.choices)
    assert len(chunks) > 6


def test_the_end_token_ends_the_answer_without_text(server):
    answer = server.complete(prompt=PROMPT, logit_bias={"1": 100})
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("", "stop")
    assert answer["usage"]["completion_tokens"] == 1


def test_a_stop_token_is_told(server):
    ids = server.complete(prompt=PROMPT, max_tokens=8, return_token_ids=True)["choices"][0]["token_ids"]
    choice = server.complete(prompt=PROMPT, max_tokens=8, stop_token_ids=[ids[4]])["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == ids[4]


def test_cached_tokens_are_told(server):
    prompt = [300 + i % 90 for i in range(64)]
    first, second = (server.complete(prompt=prompt, max_tokens=1)["usage"] for _ in range(2))
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["prompt_tokens_details"] == {"cached_tokens": 48}


def test_default_length_is_sixteen(server):
    assert server.complete(prompt=PROMPT)["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("left", "request_fields", "generated"),
    [
        pytest.param(1, {"max_tokens": 1}, 1, id="room for one token, one asked for"),
        pytest.param(1, {}, 1, id="room for one token, none asked for: the default is cut"),
        pytest.param(3, {"max_tokens": 4}, None, id="more asked for than fits"),
        pytest.param(0, {"max_tokens": 1}, None, id="no room"),
    ],
)
def test_the_window_is_kept_exactly(server, left, request_fields, generated):
    length = 512 - left
    answer = server.post("/v1/completions", prompt=[300] * length, ignore_eos=True, **request_fields)
    if generated is None:
        assert answer.status_code == 400
        assert "512" in answer.json()["error"]["message"]
        assert str(length) in answer.json()["error"]["message"]
    else:
        assert answer.json()["usage"]["completion_tokens"] == generated


def test_prompt_logprobs_have_vllms_form(server):
    choice = server.complete(prompt=PROMPT, max_tokens=1, prompt_logprobs=1)["choices"][0]
    first, second = choice["prompt_logprobs"][:2]
    assert first is None
    assert all(set(entry) == {"logprob", "rank", "decoded_token"} for entry in second.values())


@pytest.mark.parametrize("form", ["ids", "text"])
def test_a_prompt_that_fills_the_window_can_be_scored(server, form):
    ids = [300] * 512
    prompt = ids if form == "ids" else server.post("/detokenize", tokens=ids).json()["prompt"]
    answer = server.complete(prompt=prompt, echo=True, max_tokens=0, logprobs=0, add_special_tokens=False)
    (choice,) = answer["choices"]
    assert len(choice["logprobs"]["token_logprobs"]) == answer["usage"]["prompt_tokens"] == 512
    assert (choice["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 0)
    refused = server.post("/v1/completions", prompt=[300] * 513, echo=True, max_tokens=0, logprobs=0)
    assert (refused.status_code, "512" in refused.text, "513" in refused.text) == (400, True, True)
    assert server.post("/v1/completions", prompt=ids, echo=True, max_tokens=1).status_code == 400
