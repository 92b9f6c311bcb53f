"""What needs no server: arrivals, traces, lengths, prompts, events, figures, limits."""

from __future__ import annotations

import itertools
import json
import random
from array import array

import pytest

from pagetide_server.bench.figures import CUT_OFF, Distribution, Outcome, distribution, summarize
from pagetide_server.bench.flags import parse as parse_flags
from pagetide_server.bench.prompts import Prompts, Ruler, ruler
from pagetide_server.bench.report import table
from pagetide_server.bench.scrape import queue_time
from pagetide_server.bench.shapes import Lengths, Mix, Shape, closed, lengths, made_up, poisson, replayed, within
from pagetide_server.bench.slo import slo
from pagetide_server.bench.stream import Reply
from pagetide_server.bench.target import Model, TargetError, chosen
from pagetide_spec.errors import SettingError
from pagetide_spec.traces import Row, parse

# ---- arrivals and shapes


def test_poisson_arrivals_have_the_rate_and_the_spread_of_a_poisson_process():
    times = list(itertools.islice(poisson(20, random.Random(5)), 20_000))
    gaps = [b - a for a, b in itertools.pairwise([0.0, *times])]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(1 / 20, rel=0.03)
    # The standard deviation of an exponential distribution is its mean.
    assert (sum((g - mean) ** 2 for g in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.03)
    assert times == list(itertools.islice(poisson(20, random.Random(5)), 20_000))


@pytest.mark.parametrize(
    ("requests", "seconds", "kept"),
    [
        pytest.param(2, None, [0, 1], id="by number"),
        pytest.param(None, 2.5, [0, 1, 2], id="by time"),
        pytest.param(9, 1, [0, 1], id="whichever comes first"),
        pytest.param(None, None, [0, 1, 2, 3, 4], id="all there are"),
    ],
)
def test_a_run_ends(requests, seconds, kept):
    shapes = [Shape(at, (("", 1),), 1) for at in range(5)]
    assert [s.at for s in within(shapes, requests, seconds)] == kept


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("128", Lengths(128, 128)),
        ("1:9", Lengths(1, 9)),
        *((t, None) for t in ("0", "9:1", "a", "1:", ":3", "1:2:3", "")),
    ],
)
def test_lengths(text, found):
    if found is None:
        with pytest.raises(ValueError):
            lengths(text)
    else:
        assert lengths(text) == found


def test_drawn_lengths_cover_their_range():
    mix = Mix(Lengths(3, 5), Lengths(7, 7), 10, 4)
    shapes = list(itertools.islice(closed(mix, random.Random(1)), 200))
    assert {s.prompt_tokens for s in shapes} == {13, 14, 15}
    assert {s.output_tokens for s in shapes} == {7}
    assert {s.parts[0] for s in shapes} == {(f"prefix-{i}", 10) for i in range(4)}
    assert [s.at for s in made_up(mix, [0.5, 2.0], random.Random(1))] == [0.5, 2.0]
    assert mix.longest == 22


@pytest.mark.parametrize(
    ("tokens", "ids", "parts"),
    [
        pytest.param(700, (1, 2), [("block-1", 512), ("block-2", 188)], id="the last block is not full"),
        pytest.param(512, (1,), [("block-1", 512)], id="full blocks"),
        pytest.param(600, (1,), [("block-1", 512), ("", 88)], id="beyond the ids the prompt is its own"),
        pytest.param(100, (1, 2), [("block-1", 100)], id="more ids than tokens"),
        pytest.param(100, (), [("", 100)], id="no ids"),
    ],
)
def test_a_traces_blocks(tokens, ids, parts):
    (shape,) = replayed([Row(3.0, tokens, 5, ids)], 2)
    assert (shape.at, shape.parts, shape.output_tokens) == (1.5, tuple(parts), 5)


# ---- traces

MOONCAKE = """\
{"timestamp": 2500, "input_length": 7, "output_length": 3, "hash_ids": [4, 5]}

{"timestamp": 1000, "input_length": 5, "output_length": 0, "hash_ids": []}
"""
LATE = '{"timestamp": 1e15, "input_length": 1, "output_length": 1}'
LONG = '{"timestamp": 0, "input_length": 10000000000, "output_length": 1}'
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:59.5000000,374,44
2023-11-16 18:16:00.7500000,396,109
"""


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        pytest.param(MOONCAKE, [Row(0, 5, 1), Row(1.5, 7, 3, (4, 5))], id="Mooncake, out of order, with an empty line"),
        pytest.param(AZURE, [Row(0, 374, 44), Row(1.25, 396, 109)], id="Azure, over the minute"),
    ],
)
def test_a_trace_is_read(text, rows):
    assert parse(text, "t") == rows


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "is empty", id="empty"),
        pytest.param("a,b\n1,2\n", "must be JSON lines, or CSV with the columns", id="other columns"),
        pytest.param(AZURE + "yesterday,1,2\n", "line 4:", id="no time"),
        pytest.param(AZURE + "2023-11-16 18:16:01,1\n", "line 4:", id="a column is missing"),
        pytest.param(MOONCAKE + '{"timestamp": 1}', "line 4: Object missing required field", id="a field is missing"),
        pytest.param('{"timestamp": 1, "input_length": 0, "output_length": 1}', "line 1: lengths", id="no input"),
        pytest.param("TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no requests", id="a heading alone"),
        pytest.param(f"{MOONCAKE}{LATE}", r"spans 1.16e\+07 days", id="times in another unit"),
        pytest.param(LONG, "line 1: lengths must be at most 1000000000", id="a prompt of more than any model takes"),
    ],
)
def test_a_wrong_trace_is_told_by_its_line(text, problem):
    with pytest.raises(SettingError, match=problem):
        parse(text, "t")


# ---- prompts


@pytest.mark.parametrize("tokens", [1, 5, 8, 9, 1000, 200_000])
def test_prompts_of_ids_have_the_wanted_length(tokens):
    ids = json.loads(bytes(Prompts(0, vocab_size=2000).make(Shape(0, (("", tokens),), 1))))
    assert len(ids) == tokens
    assert all(256 <= i < 2000 for i in ids)


def test_prompts_differ_from_the_start_unless_they_are_to_share_it():
    prompts = Prompts(0, vocab_size=50_000)
    shape = Shape(0, (("prefix-0", 40), ("block-7", 40), ("", 20)), 1)
    made = [json.loads(bytes(prompts.make(shape))) for _ in range(200)]
    assert len({tuple(m[:80]) for m in made}) == 1
    assert len({tuple(m[80:84]) for m in made}) == 200
    again = Prompts(0, vocab_size=50_000)
    assert [json.loads(bytes(again.make(shape))) for _ in range(200)] == made
    assert json.loads(bytes(Prompts(1, vocab_size=50_000).make(shape)))[:80] != made[0][:80]


def test_prompts_of_words_have_the_length_that_the_server_measures():
    measure = ruler((64, 105), (512, 777))
    assert measure == Ruler(9.0, 1.5)
    prompts = Prompts(0, measure=measure)
    text = prompts.make(Shape(0, (("prefix-0", 150), ("", 159)), 1))
    assert len(text.split()) == 200
    with pytest.raises(ValueError):
        ruler((64, 10), (512, 10))


# ---- events


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


# ---- figures


@pytest.mark.parametrize(
    ("values", "weights", "found"),
    [
        pytest.param(range(1, 101), None, (100, 50.5, 50, 90, 99, 100), id="nearest rank"),
        pytest.param([3.0], None, (1, 3, 3, 3, 3, 3), id="one value"),
        pytest.param([2.0, 1.0], None, (2, 1.5, 1, 2, 2, 2), id="unordered"),
        pytest.param([1.0, 2.0], [98.0, 2.0], (100, 1.02, 1, 1, 2, 2), id="weighted"),
        pytest.param([5.0, 1.0], [1.0, 1.0], (2, 3, 1, 5, 5, 5), id="equal weights"),
    ],
)
def test_a_distribution(values, weights, found):
    assert distribution(list(values), weights) == Distribution(*found)


def test_nothing_has_no_distribution():
    assert distribution([]) is None


@pytest.mark.parametrize(
    ("times", "tokens", "gaps", "share"),
    [
        pytest.param([1, 2, 4], 3, [1, 2], 1, id="a token an event"),
        pytest.param([1, 2, 4], None, [1, 2], 1, id="no usage"),
        pytest.param([1, 3, 7], 9, [0.5, 1], 4, id="four tokens an event"),
        pytest.param([1], 9, [], 1, id="all at once"),
        pytest.param([1, 2, 3], 1, [1, 1], 1, id="fewer tokens than events"),
    ],
)
def test_gaps_are_per_token(times, tokens, gaps, share):
    assert Outcome(0.0, times=array("d", times), output_tokens=tokens).gaps() == (gaps, share)


def outcome(intended: float, first: float, ended: float, **fields: object) -> Outcome:
    return Outcome(intended, 10, intended + 0.5, first, ended, array("d", [first, ended]), 12, 2, 4, **fields)


def test_a_summary_counts_latencies_from_the_intended_time_and_only_of_whole_answers():
    good = [outcome(10, 11, 12), outcome(11, 14, 20)]
    bad = [outcome(10.5, 11, 30, failure="HTTP 429", detail="full"), outcome(12, 0, 13, failure=CUT_OFF)]
    got = summarize([*good, *bad])
    assert (got.ok, got.failed, got.cut_off, got.details) == (2, {"HTTP 429": 1}, 1, {"HTTP 429": "full"})
    assert got.seconds == 10
    assert got.rates == {"requests_per_s": 0.2, "input_tokens_per_s": 2.4, "output_tokens_per_s": 0.4}
    assert (got.cached_tokens, got.has_usage, got.error_rate) == (8, True, pytest.approx(1 / 3))
    assert got.latencies["ttft"] == Distribution(2, 2, 1, 3, 3, 3)
    assert got.latencies["e2e"] == Distribution(2, 5.5, 2, 9, 9, 9)
    assert got.latencies["inter_token"] == Distribution(2, 3.5, 1, 6, 6, 6)
    assert got.latencies["queue"] is None


def test_a_summary_of_nothing():
    got = summarize([])
    assert (got.ok, got.seconds, got.error_rate) == (0, 0, 0)
    assert set(got.rates.values()) == {0}
    assert set(got.latencies.values()) == {None}


def test_a_long_reason_of_failure_stays_apart_from_its_count():
    summary = summarize([outcome(10, 11, 12, failure="ConnectionRefusedError")])
    assert "failed: ConnectionRefusedError 1" in table(summary, is_open_loop=False)


# ---- limits


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("ttft_p99=3", True),
        ("ttft_p50=0.9", False),
        ("e2e_mean=5.5", True),
        ("inter_token_max=5", False),
        ("requests_per_s=0.2", True),
        ("output_tokens_per_s=0.5", False),
        ("error_rate=0.4", True),
        ("error_rate=0", False),
        ("queue_p90=9", False),
    ],
)
def test_an_slo(text, kept):
    summary = summarize([outcome(10, 11, 12), outcome(11, 14, 20), outcome(10, 11, 30, failure="x")])
    failure = slo(text).failure(summary)
    assert (failure is None) is kept
    assert kept or text.split("=")[0] in failure


@pytest.mark.parametrize("text", ["ttft=1", "ttft_p95=1", "ttft_p99", "ttft_p99=fast", "=1", ""])
def test_a_wrong_slo(text):
    with pytest.raises(ValueError):
        slo(text)


# ---- the server's own figures


def exposition(name: str, *models: tuple[str, list[int], float]) -> str:
    lines = [f"# TYPE {name} histogram"]
    for model, counts, seconds in models:
        for le, count in zip(("0.1", "0.2", "+Inf"), counts, strict=True):
            lines.append(f'{name}_bucket{{model_name="{model}",le="{le}"}} {count}')
        lines += [f'{name}_sum{{model_name="{model}"}} {seconds}', f'{name}_count{{model_name="{model}"}} {counts[-1]}']
    return "\n".join(lines) + "\n"


OURS, VLLM = "pagetide_request_queue_seconds", "vllm:request_queue_time_seconds"


@pytest.mark.parametrize("name", [OURS, VLLM])
def test_queue_time_is_what_came_between_two_scrapes(name):
    before = exposition(name, ("a", [5, 5, 5], 0.1))
    after = exposition(name, ("a", [5, 9, 10], 1.1), ("b", [5, 5, 5], 0.4))
    got = queue_time(before, after)
    # Five up to 0.1, four up to 0.2, one beyond.
    assert (got.count, got.mean) == (10, pytest.approx(0.14))
    assert (got.p50, got.p90, got.p99) == (pytest.approx(0.1), pytest.approx(0.2), pytest.approx(0.2))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("", "", id="no metrics"),
        pytest.param("# TYPE up gauge\nup 1\n", "# TYPE up gauge\nup 1\n", id="other metrics"),
        pytest.param(exposition(OURS, ("a", [1, 1, 1], 1)), exposition(OURS, ("a", [1, 1, 1], 1)), id="nothing came"),
    ],
)
def test_there_may_be_no_queue_time(before, after):
    assert queue_time(before, after) is None


# ---- settings

CARDS = {"a": {"id": "a", "vocab_size": 9, "max_model_len": 5}, "b": {"id": "b", "vocab_size": "many"}}


@pytest.mark.parametrize(
    ("cards", "wanted", "found"),
    [
        pytest.param({"a": CARDS["a"]}, None, Model("a", 9, 5), id="the only one"),
        pytest.param(CARDS, "b", Model("b"), id="the one that is named"),
        pytest.param({}, "c", Model("c"), id="no list"),
        pytest.param(CARDS, None, SettingError, id="several"),
        pytest.param(CARDS, "c", SettingError, id="not in the list"),
        pytest.param({}, None, TargetError, id="no list and no name"),
    ],
)
def test_which_model(cards, wanted, found):
    if isinstance(found, Model):
        assert chosen(cards, wanted) == found
    else:
        with pytest.raises(found):
            chosen(cards, wanted)


@pytest.mark.parametrize(
    ("argv", "env", "found"),
    [
        pytest.param([], {}, {"requests": 100, "concurrency": 8, "api_key": None}, id="defaults"),
        pytest.param(["--duration=5"], {}, {"requests": None, "concurrency": 8}, id="by time"),
        pytest.param(["--rate=5"], {}, {"requests": 100, "concurrency": None, "is_open_loop": True}, id="open loop"),
        pytest.param(["--trace=f"], {}, {"requests": None, "is_open_loop": True}, id="the whole trace"),
        pytest.param(["--chat"], {}, {"path": "/v1/chat/completions"}, id="chat"),
        pytest.param([], {"OPENAI_API_KEY": "o"}, {"api_key": "o"}, id="OpenAI's key"),
        pytest.param(["--api-key=f"], {"PAGETIDE_API_KEY": "e"}, {"api_key": "f"}, id="a flag wins"),
    ],
)
def test_settings(argv, env, found):
    settings = parse_flags(["http://h:1/v1/", *argv], env)
    assert settings.url == "http://h:1"
    assert {name: getattr(settings, name) for name in found} == found
    assert "api_key" not in settings.shown()
    assert settings.api_key is None or settings.api_key not in repr(settings).split("=")
