"""The routing simulation: its model of a server, and that it drives the gateway's own router."""

from __future__ import annotations

import json

import pytest

from pagetide_gateway.routing.routers import ExpectedTime, RoundRobin
from pagetide_operator.simulate.command import main
from pagetide_operator.simulate.routing import Fleet, Replay, compare, pooled_hit_ratio, quantile
from pagetide_spec.errors import SettingError
from pagetide_spec.traces import BLOCK_TOKENS, Row, parse

B = BLOCK_TOKENS
ONE = Fleet(replicas=1, cache_blocks=10, prefill_rate=1024, decode_s=0.1)


def replay(rows, fleet, router=RoundRobin):
    return Replay(rows, fleet, router()).run()


def test_a_replica_prefills_one_request_at_a_time():
    rows = [Row(0, 1024, 1, (1, 2)), Row(0, 1024, 1, (3, 4))]
    outcome = replay(rows, ONE)
    assert (outcome.prefill_delay_p50_s, outcome.prefill_delay_p95_s) == (1.0, 2.0)
    assert outcome.hit_ratio == 0


def test_what_is_cached_is_not_prefilled_but_for_the_last_token():
    rows = [Row(0, 1024, 1, (1, 2)), Row(9, 1024, 1, (1, 2))]
    outcome = replay(rows, ONE)
    assert outcome.hit_ratio == pytest.approx(1023 / 2048)
    assert outcome.prefill_delay_p50_s == pytest.approx(1 / 1024)


def test_the_cache_forgets_what_was_used_longest_ago():
    fleet = Fleet(replicas=1, cache_blocks=2, prefill_rate=1024)
    rows = [Row(i * 10, 1024, 1, ids) for i, ids in enumerate([(1, 2), (3, 4), (1, 2)])]
    assert replay(rows, fleet).hit_ratio == 0


def conversations(count: int, turns: int) -> list[Row]:
    """Each turn repeats what was said before and adds two blocks."""
    rows = [
        Row(
            turn * 10 + who * 0.01,
            (turn + 1) * 2 * BLOCK_TOKENS,
            10,
            tuple(who * 1000 + i for i in range(2 * turn + 2)),
        )
        for turn in range(turns)
        for who in range(count)
    ]
    return sorted(rows, key=lambda row: row.at)


def test_turns_of_a_conversation_go_where_its_beginning_is():
    rows = conversations(count=7, turns=6)
    fleet = Fleet(replicas=4, cache_blocks=100)
    routed, in_turn = replay(rows, fleet, ExpectedTime), replay(rows, fleet)
    assert routed.hit_ratio == pytest.approx(pooled_hit_ratio(rows, 400), abs=0.01)
    assert routed.hit_ratio > 2 * in_turn.hit_ratio
    assert routed.prefill_delay_p95_s < in_turn.prefill_delay_p95_s


def test_a_beginning_that_all_share_does_not_gather_all_on_one_replica():
    rows = [Row(i * 0.02, 21 * BLOCK_TOKENS, 200, (*range(20), 1000 + i)) for i in range(400)]
    assert replay(rows, Fleet(replicas=4, cache_blocks=1000), ExpectedTime).load_skew < 1.5


def test_the_comparison_says_how_it_does_against_both():
    figures = compare(conversations(5, 4), Fleet(replicas=2, cache_blocks=50))
    against = figures["comparison"]
    ratio = figures["prefill_delay_p95_s"] / against["round_robin"]["prefill_delay_p95_s"]
    assert against["prefill_delay_p95_to_round_robin"] == ratio
    assert against["hit_ratio_to_pooled_cache"] == figures["hit_ratio"] / against["pooled_cache"]["hit_ratio"]


@pytest.mark.parametrize(("q", "value"), [(0.5, 2), (0.95, 4), (0.0, 1), (1.0, 4)])
def test_quantile(q, value):
    assert quantile([4, 1, 3, 2], q) == value


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = [{"timestamp": i * 100, "input_length": 1024, "output_length": 5, "hash_ids": [0, i]} for i in range(8)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def test_the_command_prints_json(trace, capsys):
    assert main(["--routing", "--trace", trace, "--replicas", "2", "--json", "-"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert {"hit_ratio", "prefill_delay_p50_s", "prefill_delay_p95_s", "load_skew"} < set(figures)


def test_the_command_prints_a_table(trace, capsys):
    assert main(["--routing", "--trace", trace]) == 0
    assert "round robin" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        pytest.param(["--replicas", "0"], "--replicas", id="no replica"),
        pytest.param(["--replicas", "1000000000"], "--replicas", id="a fleet without end"),
        pytest.param(["--prefill-rate", "nan"], "--prefill-rate", id="no number"),
        pytest.param(["--json", "/no/such/folder/x"], "--json", id="cannot be written"),
        pytest.param(["--trace", "/no/such/file"], "--trace", id="no such trace"),
    ],
)
def test_a_wrong_call_is_named(trace, arguments, named, capsys):
    try:
        code = main(["--routing", "--trace", trace, *arguments])
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert named in capsys.readouterr().err


def test_a_trace_without_requests_is_refused():
    with pytest.raises(SettingError, match="has no requests"):
        parse("TIMESTAMP,ContextTokens,GeneratedTokens\n", "empty.csv")
