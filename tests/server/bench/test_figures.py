"""`pagetide bench`: what answers come to, and whether that is within limits."""

from __future__ import annotations

from array import array

import pytest

from pagetide_server.bench.figures import CUT_OFF, Distribution, Outcome, distribution, summarize
from pagetide_server.bench.report import table
from pagetide_server.bench.slo import slo


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


@pytest.mark.parametrize("text", ["ttft=1", "ttft_p95=1", "ttft_p99", "ttft_p99=fast", "ttft_p99=nan", "=1", ""])
def test_a_wrong_slo(text):
    with pytest.raises(ValueError):
        slo(text)
