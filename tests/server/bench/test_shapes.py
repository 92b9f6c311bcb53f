"""`pagetide bench`: when requests are sent, and how long they are."""

from __future__ import annotations

import itertools
import random

import pytest

from pagetide_server.bench.shapes import Lengths, Mix, Shape, closed, lengths, made_up, poisson, replayed, within
from pagetide_spec.traces import Row


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
