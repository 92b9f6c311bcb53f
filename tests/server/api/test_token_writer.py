"""Plain tokens are written on a way of their own: clients must get the same bytes as without it."""

from __future__ import annotations

import asyncio
import types

import msgspec
import pytest
from fake_client import Engine
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetide_http.fast_path import FastPath
from pagetide_server.api import chat, completions
from pagetide_server.api.answering import _Events
from pagetide_server.api.generation import generating
from pagetide_server.api.metrics import ServerMetrics
from pagetide_server.api.protocol import ChatRequest, CompletionRequest
from pagetide_server.api.streaming import send_events
from pagetide_server.api.token_writer import SAMPLE, around_text
from pagetide_server.process.mailbox import Prompt
from pagetide_server.text.tokenizer import Tokenizer
from pagetide_server.wire.messages import SamplingParams, SequenceOutput
from pagetide_spec.config import EngineConfig

SIZE = 400
MESSAGES = [{"role": "user", "content": "hello"}]
QUICK, NOT_QUICK = True, False


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    import tiny_tokenizer

    return Tokenizer.from_folder(tiny_tokenizer.build(tmp_path_factory.mktemp("tokenizer")))


class Client:
    """What a client of one stream reads, by `send` and on the short way."""

    response_started, response_complete, chunked_encoding = True, False, True

    def __init__(self):
        self.read = b""
        self.flow = types.SimpleNamespace(write_paused=False)
        self.transport = self

    def is_closing(self):
        return False

    def write(self, data):
        size, _, rest = data.partition(b"\r\n")
        assert rest[int(size, 16) :] == b"\r\n"
        self.read += rest[:-2]

    async def send(self, message):
        self.read += message.get("body", b"")


def job_of(tokenizer, kind, **fields):
    """A checked request."""
    context = types.SimpleNamespace(model_name="m", config=EngineConfig(model="m"))
    prompter = types.SimpleNamespace(tokenizer=tokenizer)
    n, stop = fields.get("n", 1), (fields["stop"],) if "stop" in fields else ()
    params = SamplingParams(n=n, stop=stop, max_tokens=None)
    prompts = [Prompt([300 + i], params) for i in range(fields.pop("prompts", 1))]
    asked = {"stream": True, "request_id": "id", **fields}
    if kind == "chat":
        body = msgspec.convert({"messages": MESSAGES, **asked}, ChatRequest)
        job = chat._Job(context, prompter, body, "hello", prompts[0], "")
    else:
        body = msgspec.convert({"prompt": "x", **asked}, CompletionRequest)
        texts = [types.SimpleNamespace(text="x", token_ids=prompt.token_ids) for prompt in prompts]
        job = completions._Job(context, prompter, body, texts, prompts, "")
    job.created = 0
    return job


async def stream(job, tokens, has_way=True, stalls=()):
    """What the client reads of an answer of `tokens`, the metrics, and whether its tokens went the quick way.

    While the places of tokens in `stalls` come, the client does not read.
    """
    engine, client, metrics = Engine(), Client(), ServerMetrics("m", "1")
    with generating(engine, job.tokenizer, metrics, job.prompts, job.structure_field, arrival=0.0) as generation:
        way = FastPath(client) if has_way else None
        sending = asyncio.ensure_future(send_events(client.send, _Events(job, generation), way))
        for place, token in enumerate(tokens):
            client.flow.write_paused = place in stalls
            if place == 0:
                engine.box.put(SequenceOutput(request_id="r-0", token_ids=[token], scheduled=1.0), is_last=True)
            else:
                engine.box.put_plain("r-0", token, is_last=True)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        is_quick = engine.box.token_tap is not None
        for request_id in engine.box.ids:
            for index in range(job.body.n or 1):
                last = SequenceOutput(request_id=request_id, index=index, token_ids=[1], finish_reason="length")
                engine.box.put(last, is_last=True)
        await sending
    return client.read, counts(metrics), is_quick


def counts(metrics):
    """All that the metrics have counted, without the times."""
    histograms = {name: sum(histogram.counts) for name, histogram in metrics._histograms.items()}
    return metrics._values, histograms


TOKENS = st.lists(st.integers(3, SIZE - 1), min_size=1, max_size=30)


CASES = [
    pytest.param("text", {}, QUICK, id="a completion"),
    pytest.param("text", {"echo": True}, QUICK, id="a completion behind its prompt"),
    pytest.param("text", {"stream_options": {"include_usage": True}}, QUICK, id="usage at the end"),
    pytest.param("text", {"request_id": 'a"<text>"'}, QUICK, id="an id like the text of the pattern"),
    pytest.param("chat", {}, QUICK, id="a chat"),
    pytest.param("chat", {"max_tokens": 50, "user": "x"}, QUICK, id="a chat with fields that change nothing"),
    pytest.param("text", {"stop": "e"}, NOT_QUICK, id="a stop string"),
    pytest.param("text", {"n": 2}, NOT_QUICK, id="two answers"),
    pytest.param("text", {"prompts": 2}, NOT_QUICK, id="two prompts"),
    pytest.param("text", {"return_token_ids": True}, NOT_QUICK, id="token ids"),
    pytest.param("chat", {"return_token_ids": True}, NOT_QUICK, id="token ids of a chat"),
    pytest.param(
        "text",
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        NOT_QUICK,
        id="usage in every event",
    ),
]


@pytest.mark.parametrize(("kind", "fields", "quick"), CASES)
@settings(max_examples=25, deadline=None)
@given(tokens=TOKENS, data=st.data())
def test_a_client_gets_the_same_bytes(tokenizer, kind, fields, quick, tokens, data):
    stalls = data.draw(st.sets(st.integers(0, len(tokens) - 1)))
    plain = asyncio.run(stream(job_of(tokenizer, kind, **fields), tokens, has_way=False))
    found = asyncio.run(stream(job_of(tokenizer, kind, **fields), tokens, stalls=stalls))
    assert found[:2] == plain[:2]


@pytest.mark.parametrize(("kind", "fields", "quick"), CASES)
def test_the_quick_way_is_taken_where_nothing_but_the_text_differs(tokenizer, kind, fields, quick):
    tokens = tokenizer.encode("The old harbour town", add_special_tokens=False)
    assert asyncio.run(stream(job_of(tokenizer, kind, **fields), tokens))[2] == quick


@given(st.text(), st.text(), st.text())
def test_a_pattern_is_cut_around_its_text(before, text, behind):
    def make(text):
        return msgspec.json.encode([before + SAMPLE, text, behind])

    head, tail = around_text(make)
    assert SAMPLE in behind or head + msgspec.json.encode(text) + tail == make(text)


@pytest.mark.parametrize("made", [pytest.param(b"", id="no event"), pytest.param(b'{"text":null}', id="no text")])
def test_an_event_without_its_text_is_no_pattern(made):
    with pytest.raises(ValueError, match="is without it"):
        around_text(lambda text: made)
