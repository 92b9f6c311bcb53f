"""The statistics of bench/cpu_peers.py, its workloads, and what it refuses to compare."""

from __future__ import annotations

from typing import Any

import pytest
from peers.contenders import CONTENDERS, UnlikePrecisions, check_precisions
from peers.figures import Line, Run, Spread, lines, table
from peers.workloads import HIGHEST, LOWEST, WORKLOADS, requests_of


def run(contender: str, number: int, seconds: float, **changes: Any) -> Run:
    """100 tokens in so many seconds, the first one after a tenth of them."""
    fields: dict[str, Any] = {
        "weights": "float32",
        "precision": "16/32-bit",
        "workload": "W1",
        "tokens": 100,
        "first_token_seconds": [seconds / 10],
        "peak_mib": 1000.0,
        "own_share": 0.9,
        "others_share": 0.01,
        "beginnings": [[1, 2], [3, 4]],
    }
    return Run(contender=contender, round=number, seconds=seconds, **{**fields, **changes})


def line(found: list[Line], contender: str) -> Line:
    return next(each for each in found if each.contender == contender)


def test_medians_and_ranges_of_rounds() -> None:
    found = lines([run("ours", i, seconds) for i, seconds in enumerate((10, 4, 5))])
    assert found[0].tokens_per_second == Spread(20.0, 10.0, 25.0)
    assert found[0].first_token == Spread(0.5, 0.4, 1.0)
    assert found[0].ratio is None


def test_ratios_are_of_the_same_round() -> None:
    # The machine was half as fast in the second round: the medians of all rounds would say 1.5.
    ours = [run("ours", 0, 5), run("ours", 1, 10), run("ours", 2, 5)]
    theirs = [run("theirs", 0, 10), run("theirs", 1, 20), run("theirs", 2, 15)]
    found = line(lines([each for pair in zip(ours, theirs, strict=True) for each in pair]), "theirs")
    assert found.ratio == Spread(2.0, 2.0, 3.0)
    assert found.first_token_ratio == Spread(0.5, pytest.approx(1 / 3), 0.5)


@pytest.mark.parametrize(
    ("shares", "runs", "disturbed", "median"),
    [
        pytest.param([0.0, 0.05, 0.02], 3, 0, 20.0, id="a quiet machine: all count"),
        pytest.param([0.0, 0.5, 0.02], 2, 1, 25.0, id="a run beside others' work is left out"),
        pytest.param([0.5, 0.5, 0.5], 3, 0, 20.0, id="nothing else than disturbed runs: they are shown"),
    ],
)
def test_disturbed_runs(shares: list[float], runs: int, disturbed: int, median: float) -> None:
    made = [run("ours", i, s, others_share=o) for i, (s, o) in enumerate(zip((5, 10, 10 / 3), shares, strict=True))]
    found = lines(made)[0]
    assert (found.runs, found.disturbed, found.tokens_per_second.median) == (runs, disturbed, pytest.approx(median))


def test_a_contender_without_times_of_tokens_has_no_ratio_of_them() -> None:
    found = line(lines([run("ours", 0, 5), run("theirs", 0, 5, first_token_seconds=[])]), "theirs")
    assert (found.first_token, found.first_token_ratio, found.ratio) == (None, None, Spread(1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("beginnings", "agreement"),
    [
        pytest.param([[1, 2], [3, 4]], 1.0, id="the same answers"),
        pytest.param([[1, 2], [3, 5]], 0.5, id="one begins otherwise"),
        pytest.param([], None, id="a server that tells no tokens"),
    ],
)
def test_share_of_answers_that_begin_alike(beginnings: list[list[int]], agreement: float | None) -> None:
    found = lines([run("ours", 0, 5), run("theirs", 0, 5, beginnings=beginnings)])
    assert line(found, "theirs").agreement == agreement


def test_the_table_marks_unlike_precisions_and_tells_what_was_left_out() -> None:
    unlike = {"weights": "Q8_0", "precision": "8-bit"}
    runs = [run("ours", 0, 5), run("theirs", 0, 4, **unlike), run("theirs", 1, 4, others_share=0.5, **unlike)]
    text = table(lines(runs))
    assert "| 0.80 (0.80-0.80) (!) |" in text
    assert "weights of another class of precision" in text
    assert "1 runs left out: others used more than 10%" in text
    assert "(!)" not in table(lines([run("ours", 0, 5), run("theirs", 0, 4)]))


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        pytest.param(["pagetide", "vllm", "llama.cpp"], False, id="16 and 32 bits are one class"),
        pytest.param(["pagetide-int8", "llama.cpp-q8_0"], False, id="8 bits"),
        pytest.param(["pagetide-int8", "vllm"], True, id="8 bits against 32"),
        pytest.param(["pagetide", "llama.cpp-q8_0"], True, id="32 bits against 8"),
    ],
)
def test_unlike_precisions_are_refused_unless_asked_for(names: list[str], refused: bool) -> None:
    chosen = [CONTENDERS[name] for name in names]
    check_precisions(chosen, unlike=True)
    if not refused:
        check_precisions(chosen, unlike=False)
        return
    with pytest.raises(UnlikePrecisions) as caught:
        check_precisions(chosen, unlike=False)
    for name in names:
        assert f"{name} ({CONTENDERS[name].weights})" in str(caught.value)
    assert "--unlike-precisions" in str(caught.value)


@pytest.mark.parametrize("name", ["openvino", "openvino-bf16"])
def test_an_engine_that_keeps_no_prefix_by_itself_is_told_to_where_one_is_shared(name: str) -> None:
    options = {workload: CONTENDERS[name].options_of(workload) for workload in WORKLOADS}
    assert [workload for workload in WORKLOADS if options[workload].get("prefix_caching")] == ["W2"]


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_what_they_are_said_to_be(name: str) -> None:
    shape, made = WORKLOADS[name], requests_of(name)
    assert made == requests_of(name)
    assert len(made) == shape.requests
    begin = made[0].prompt[: shape.shared]
    for request in made:
        assert request.prompt[: shape.shared] == begin
        assert shape.own[0] <= len(request.prompt) - shape.shared <= shape.own[1]
        assert shape.answer[0] <= request.max_tokens <= shape.answer[1]
        assert all(LOWEST <= token <= HIGHEST for token in request.prompt)
    assert len({tuple(r.prompt[shape.shared : shape.shared + 16]) for r in made}) == len(made)
