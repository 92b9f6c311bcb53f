"""`pagetide bench`: what is read out of an answer's events."""

from __future__ import annotations

import json

import pytest

from pagetide_server.bench.figures import Outcome
from pagetide_server.bench.stream import Reply


def fed(data: bytes, cuts: int, status: int = 200) -> Outcome:
    """The outcome of a body that comes in pieces of so many bytes, one a second from 1 s on."""
    outcome = Outcome(0.0)
    reply = Reply(outcome)
    reply.status = status
    pieces = [data[i : i + cuts] for i in range(0, len(data), cuts)]
    for now, piece in enumerate(pieces, 1):
        reply.feed(piece, float(now))
    reply.close(float(len(pieces) + 1))
    return outcome


def sse(*messages: object) -> bytes:
    return b"".join(b"data: %s\n\n" % (m if isinstance(m, bytes) else json.dumps(m).encode()) for m in messages)


def text(value: str, reason: str | None = None) -> dict:
    return {"choices": [{"index": 0, "text": value, "finish_reason": reason}]}


def delta(reason: str | None = None, **fields: object) -> dict:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 4, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
}
DONE = b"[DONE]"


@pytest.mark.parametrize("cuts", [1, 7, 64, 10_000])
def test_events_are_the_same_however_they_are_cut(cuts):
    data = sse(text("é"), text("b\n\ndata: "), text("c", "length"), USAGE, DONE)
    got = fed(data, cuts)
    assert (got.failure, len(got.times), got.tokens, got.prompt_tokens, got.cached_tokens) == ("", 3, 3, 4, 2)
    assert got.first == got.times[0]
    assert list(got.times) == sorted(got.times)


@pytest.mark.parametrize(
    ("events", "times", "first"),
    [
        pytest.param([text("a"), text("b", "stop"), DONE], [1, 2], 1, id="text"),
        pytest.param([delta(role="assistant", content=""), delta(content="a"), DONE], [2], 2, id="a role is no token"),
        pytest.param([delta(reasoning_content="a"), delta(content="b"), DONE], [1, 2], 1, id="reasoning is"),
        pytest.param([delta(tool_calls=[{"index": 0}]), DONE], [1], 1, id="a tool call is"),
        pytest.param([text("a"), text("", "stop"), DONE], [1], 1, id="an end without a token is none"),
        pytest.param([text("a"), text("", "length"), USAGE, DONE], [1, 2], 1, id="unless usage knows of more"),
        pytest.param([text(""), text("", "stop"), USAGE, DONE], [2], 2, id="tokens without text, known by usage"),
        pytest.param([text(""), text("", "stop"), DONE], [], 1, id="tokens without text"),
        pytest.param([text("a", "stop")], [1], 1, id="no [DONE] after a reason"),
    ],
)
def test_when_tokens_came(events, times, first):
    outcome = Outcome(0.0)
    reply = Reply(outcome)
    reply.status = 200
    for now, message in enumerate(events, 1):
        reply.feed(sse(message), float(now))
    reply.close(99.0)
    assert (outcome.failure, list(outcome.times), outcome.first) == ("", times, first)


@pytest.mark.parametrize(
    ("data", "status", "failure", "detail"),
    [
        pytest.param(sse(text("a")), 200, "broken off", "", id="no end"),
        pytest.param(b"", 200, "broken off", "", id="nothing"),
        pytest.param(sse(text("a"), {"error": {"message": "m"}}, DONE), 200, "error event", "m", id="an error event"),
        pytest.param(sse(b"{oops", DONE), 200, "not an event", "oops", id="no JSON"),
        pytest.param(b'{"error": {"message": "too long"}}', 400, "HTTP 400", "too long", id="an OpenAI error"),
        pytest.param(b"<html>bad gateway", 502, "HTTP 502", "<html>bad", id="another error"),
    ],
)
def test_why_an_answer_failed(data, status, failure, detail):
    got = fed(data, 5, status)
    assert got.failure == failure
    assert detail in got.detail
