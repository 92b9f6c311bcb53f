"""The most probable token is the first of the largest, whatever way is taken to find it."""

from __future__ import annotations

import pytest
import torch

from pagetide_server.engine.sampling.greedy import argmax, greedy


@pytest.mark.parametrize("vocabulary", [1, 7, 64, 384, 512, 1000, 4096])
@pytest.mark.parametrize("rows", [1, 4, 9])
def test_equals_a_search_of_the_whole_row(rows: int, vocabulary: int) -> None:
    torch.manual_seed(rows * vocabulary)
    # Few different values, so that many are equal.
    logits = torch.randint(-3, 3, (rows, vocabulary)).float()
    expected = [row.index(max(row)) for row in logits.tolist()]
    assert argmax(logits).tolist() == expected
    wide = torch.randn(rows, vocabulary)
    assert argmax(wide).tolist() == wide.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param({3: float("nan"), 300: 5.0}, 3, id="a NaN is shown, though another is larger than all"),
        pytest.param({3: 5.0, 300: float("nan"), 301: float("nan")}, 300, id="the first NaN"),
        pytest.param({400: float("inf")}, 400, id="infinity"),
        pytest.param({i: float("-inf") for i in range(512)}, 0, id="nothing is possible: the first"),
        pytest.param({i: float("-inf") for i in range(512) if i != 511}, 511, id="only the last is possible"),
    ],
)
def test_strange_values(values: dict[int, float], expected: int) -> None:
    logits = torch.zeros(5, 512)
    for place, value in values.items():
        logits[2, place] = value
    assert argmax(logits).tolist() == [0, 0, expected, 0, 0]


@pytest.mark.parametrize("rows", [pytest.param(1, id="a single row"), pytest.param(5, id="rows searched in blocks")])
@pytest.mark.parametrize("top", [pytest.param(7.25, id="a number"), pytest.param(float("nan"), id="NaN")])
def test_each_choice_comes_with_its_logit(rows: int, top: float) -> None:
    logits = torch.zeros(rows, 512)
    logits[-1, 300] = logits[-1, 400] = top
    tokens, tops = greedy(logits)
    assert tokens.tolist() == [0] * (rows - 1) + [300]
    assert tops.tolist() == pytest.approx([0.0] * (rows - 1) + [top], abs=0, nan_ok=True)


def test_rows_that_do_not_follow_each_other() -> None:
    logits = torch.randn(512, 8).T
    assert argmax(logits).tolist() == logits.argmax(-1).tolist()
