"""Every feature of the API through OpenAI's own client, whole and streamed."""

from __future__ import annotations

import asyncio
import inspect

import openai
import pydantic
import pytest
from openai.resources.chat.completions import Completions as ChatCompletions
from openai.resources.completions import Completions

PROMPT = "The old harbour town"
MESSAGES = [{"role": "user", "content": "Tell me about the sea"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
# Of fake_core.py.
SLOW, FAIL = 380, 381


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as found:
        yield found


def complete(client, **fields):
    return client.completions.create(**{"model": "tiny", "prompt": PROMPT, "max_tokens": 6, **fields})


def chat(client, **fields):
    return client.chat.completions.create(**{"model": "tiny", "messages": MESSAGES, "max_tokens": 6, **fields})


def parameters(create):
    """What the client's own method sends, beside what it needs."""
    own = {"self", "model", "messages", "prompt", "timeout"}
    return [name for name in inspect.signature(create).parameters if name not in own and not name.startswith("extra_")]


@pytest.mark.parametrize("name", parameters(Completions.create))
def test_any_parameter_of_completions_may_be_null(client, name):
    assert complete(client, **{name: None}).choices


@pytest.mark.parametrize("name", parameters(ChatCompletions.create))
def test_any_parameter_of_a_chat_may_be_null(client, name):
    assert chat(client, **{name: None}).choices


def texts(answer):
    """The answers' texts by index, of a whole answer or of a stream of either route."""
    found = {}
    for chunk in answer if isinstance(answer, openai.Stream) else [answer]:
        for choice in chunk.choices:
            part = choice.text if hasattr(choice, "text") else getattr(choice, "delta", None) or choice.message
            found[choice.index] = found.get(choice.index, "") + (part if isinstance(part, str) else part.content or "")
    return found


COMMON = [
    pytest.param({"n": 3}, 3, id="n"),
    pytest.param({"temperature": 0, "top_p": 0.5, "seed": 7}, 1, id="temperature, top_p, seed"),
    pytest.param({"presence_penalty": 0.5, "frequency_penalty": -0.5}, 1, id="penalties"),
    pytest.param({"logit_bias": {"300": 100}}, 1, id="logit_bias"),
    pytest.param({"stop": ["\u2603", "\u2604"]}, 1, id="stop"),
    pytest.param({"user": "somebody"}, 1, id="user"),
    pytest.param({"extra_body": {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2}}, 1, id="top_k, min_p"),
    pytest.param({"extra_body": {"ignore_eos": True, "min_tokens": 2, "stop_token_ids": [5]}}, 1, id="ends"),
    pytest.param({"extra_body": {"priority": 3, "cache_salt": "s"}}, 1, id="priority, cache_salt"),
    pytest.param({"extra_body": {"response_format": {"type": "text"}}}, 1, id="response_format text"),
    pytest.param({"extra_body": {"response_format": {"type": "json_object"}}}, 1, id="response_format json_object"),
    pytest.param({"extra_body": {"guided_choice": ["a", "b"]}}, 1, id="guided_choice"),
    pytest.param({"extra_body": {"guided_json": {"type": "object"}}}, 1, id="guided_json"),
    pytest.param({"extra_body": {"guided_regex": "a+"}}, 1, id="guided_regex"),
    pytest.param({"extra_body": {"guided_grammar": "right"}}, 1, id="guided_grammar"),
    pytest.param({"extra_body": {"structured_outputs": {"choice": ["a"]}}}, 1, id="structured_outputs"),
    pytest.param({"extra_body": {"bad_words": ["war"], "include_stop_str_in_output": True}}, 1, id="bad_words"),
    pytest.param({"extra_body": {"add_special_tokens": False, "skip_special_tokens": False}}, 1, id="special tokens"),
    pytest.param({"extra_body": {"return_token_ids": True}}, 1, id="return_token_ids"),
    pytest.param({"extra_body": {"truncate_prompt_tokens": 3}}, 1, id="truncate_prompt_tokens"),
]
COMPLETION = [
    pytest.param({"echo": True}, 1, id="echo"),
    pytest.param({"echo": True, "logprobs": 2, "n": 2}, 2, id="echo with log probabilities, twice"),
    pytest.param({"logprobs": 3}, 1, id="logprobs"),
    pytest.param({"prompt": ["a", "b"]}, 2, id="two texts"),
    pytest.param({"prompt": [300, 301]}, 1, id="token ids"),
    pytest.param({"prompt": [[300, 301], [302]], "n": 2}, 4, id="two lists of ids, twice each"),
]
CHAT = [
    pytest.param({"logprobs": True}, 1, id="logprobs without top_logprobs"),
    pytest.param({"logprobs": True, "top_logprobs": 5}, 1, id="top_logprobs"),
    pytest.param({"max_tokens": None, "max_completion_tokens": 4}, 1, id="max_completion_tokens"),
    pytest.param({"tools": [TOOL]}, 1, id="tools"),
    pytest.param({"tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": False}, 1, id="tool_choice none"),
    pytest.param({"store": True, "metadata": {"a": "b"}, "service_tier": "auto"}, 1, id="store, metadata"),
    pytest.param({"reasoning_effort": "low", "verbosity": "low", "modalities": ["text"]}, 1, id="reasoning_effort"),
    pytest.param({"safety_identifier": "s", "prompt_cache_key": "k"}, 1, id="safety_identifier, prompt_cache_key"),
    pytest.param({"prediction": {"type": "content", "content": "x"}}, 1, id="prediction"),
    pytest.param({"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}, 1, id="chat_template_kwargs"),
    pytest.param({"messages": [*MESSAGES, {"role": "assistant", "content": "It"}],
                  "extra_body": {"continue_final_message": True, "add_generation_prompt": False}}, 1, id="continued"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "count"), [*COMMON, *COMPLETION])
def test_completions(client, fields, count):
    whole = complete(client, **fields)
    assert sorted(c.index for c in whole.choices) == list(range(count))
    assert {c.finish_reason for c in whole.choices} <= {"stop", "length"}
    assert texts(complete(client, **fields, stream=True)) == texts(whole)


@pytest.mark.parametrize(("fields", "count"), [*COMMON, *CHAT])
def test_chats(client, fields, count):
    whole = chat(client, **fields)
    assert sorted(c.index for c in whole.choices) == list(range(count))
    assert {c.message.role for c in whole.choices} == {"assistant"}
    assert texts(chat(client, **fields, stream=True)) == texts(whole)


def test_models(client):
    (card,) = client.models.list().data
    assert (card.id, card.max_model_len) == ("tiny", 512)
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    ("fields", "error", "param", "code"),
    [
        pytest.param({"temperature": 3}, openai.BadRequestError, "temperature", "invalid_value", id="out of range"),
        pytest.param({"suffix": "x"}, openai.BadRequestError, "suffix", None, id="suffix"),
        pytest.param({"best_of": 3, "stream": True}, openai.BadRequestError, "best_of", None, id="best_of in a stream"),
        pytest.param({"model": "other"}, openai.NotFoundError, "model", "model_not_found", id="another model"),
        pytest.param(
            {"prompt": [300] * 600}, openai.BadRequestError, "prompt", "context_length_exceeded", id="a long prompt"
        ),
        pytest.param({"prompt": [FAIL]}, openai.InternalServerError, None, "engine_error", id="the engine fails"),
    ],
)
def test_errors_are_the_clients_own(client, fields, error, param, code):
    with pytest.raises(error) as caught:
        complete(client, **fields)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.request_id


def test_an_error_in_a_stream_is_raised_where_it_is_read(client):
    stream = complete(client, prompt=[FAIL], stream=True)
    with pytest.raises(openai.APIError, match="the engine failed"):
        list(stream)


def test_a_wrong_key_and_a_full_queue_are_the_clients_own_errors(launch):
    with launch("--api-key=secret", "--max-queue-len=1", "--max-num-seqs=1") as server:
        url = server.url + "/v1"
        wrong = openai.OpenAI(base_url=url, api_key="wrong", max_retries=0)
        with wrong, pytest.raises(openai.AuthenticationError):
            complete(wrong)
        with openai.OpenAI(base_url=url, api_key="secret", max_retries=0) as client:
            stream = complete(client, prompt=[SLOW, 300], max_tokens=99, stream=True)
            next(iter(stream))
            with pytest.raises(openai.RateLimitError) as caught:
                asyncio.run(_many(url))
            assert int(caught.value.response.headers["retry-after"]) >= 1
            stream.close()


async def _many(url):
    async with openai.AsyncOpenAI(base_url=url, api_key="secret", max_retries=0) as client:
        await asyncio.gather(*(complete(client, max_tokens=1) for _ in range(6)))


def dictated(server, text):
    """What makes the fake model answer with this text, and end."""
    ids = server.post("/tokenize", prompt=text, add_special_tokens=False).json()["tokens"]
    return {"allowed_token_ids": ids}


def test_the_streaming_helper_builds_the_whole_answer(server, client):
    fields = {"model": "tiny", "messages": MESSAGES, "extra_body": dictated(server, "Waves.")}
    with client.chat.completions.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= set(kinds)
    assert final.choices[0].message.content == "Waves."


def test_a_parsed_answer(server, client):
    class City(pydantic.BaseModel):
        name: str

    answer = client.chat.completions.parse(
        model="tiny", messages=MESSAGES, response_format=City, extra_body=dictated(server, '{"name": "Oslo"}')
    )
    assert answer.choices[0].message.parsed == City(name="Oslo")


async def test_a_cancelled_stream_frees_its_place(server, wait):
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        stream = await complete(client, prompt=[SLOW, 300], max_tokens=400, stream=True)
        await anext(aiter(stream))
        assert server.metric("pagetide_requests_running") == 1
        await stream.close()
        wait(lambda: not server.metric("pagetide_requests_running"), 2)
