"""Drawing of tokens in C++ against what it means: sorting, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetide_kernels.cpu.sample import sample
from pagetide_kernels.reference.sample import sample as reference

from .sampling_rows import ROWS

pytestmark = pytest.mark.usefixtures("poisoned", "needs_compiler")

NAN, INF = float("nan"), float("inf")
VOCABULARIES = [1, 3, 203, 256, 1000, 5003]


def random_numbers(rows: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two tables and where the rows begin in them."""
    first, second = torch.randint(0, 2**31, (2, vocabulary + 50)).int()
    return first, second, torch.randint(0, 51, (rows, 2))


def check(logits: torch.Tensor, rows: list[tuple[float, int, float, float]]) -> None:
    """The op draws what the reference does, and tells the largest logits."""
    first, second, starts = random_numbers(len(rows), logits.shape[1])
    heat, top_k, top_p, min_p = (torch.tensor(column) for column in zip(*rows, strict=True))
    bits = torch.stack([first[a : a + logits.shape[1]] ^ second[b : b + logits.shape[1]] for a, b in starts.tolist()])
    expected = reference(logits, heat.double(), top_k, top_p.double(), min_p.double(), bits)
    shapes = torch.stack((heat, top_p, min_p), 1).double()
    tokens, tops = sample(logits, shapes, top_k, first, second, starts)
    assert torch.equal(tokens, expected)
    assert torch.equal(tops, logits.amax(1))


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 60.0])
@pytest.mark.parametrize("ties", [False, True], ids=["different logits", "many equal logits"])
def test_draws_what_sorting_would(vocabulary: int, spread: float, ties: bool) -> None:
    torch.manual_seed(vocabulary + ties)
    for _ in range(3):
        logits = torch.randn(len(ROWS), vocabulary + 5)[:, 3:-2] * spread
        logits = logits.round() if ties else logits
        logits[:, 7:9] = -INF
        logits[0, :4] = torch.tensor([0.0, -0.0, 0.0, -0.0])[:vocabulary]
        check(logits, ROWS)


@given(
    st.integers(0, 2**32),
    st.floats(0.05, 4),
    st.sampled_from([0, 1, 2, 7, 40, 999, 1000, 2000]),
    st.floats(0.01, 1),
    st.floats(0, 0.9),
)
@settings(max_examples=100, deadline=None)
def test_no_parameters_deceive_it(seed: int, heat: float, top_k: int, top_p: float, min_p: float) -> None:
    torch.manual_seed(seed)
    check(torch.randn(3, 1000) * 3, [(heat, top_k, top_p, min_p)] * 3)


@pytest.mark.parametrize("bits", [0, 2**31 - 1], ids=["least", "greatest"])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_impossible_tokens_never_come(bits: int, row: tuple[float, int, float, float]) -> None:
    logits = torch.full((1, 1000), -INF)
    logits[0, 400:403] = torch.tensor([1.0, 1.0, 0.5])
    heat, top_k, *shape = row
    tables = torch.full((1000,), bits).int(), torch.zeros(1000).int(), torch.zeros(1, 2).long()
    tokens, _ = sample(logits, torch.tensor([[heat, *shape]]).double(), torch.tensor([top_k]), *tables)
    assert tokens.item() in (400, 401, 402)


@pytest.mark.parametrize(
    ("values", "top"),
    [
        pytest.param({7: NAN, 300: INF}, NAN, id="NaN"),
        pytest.param({999: NAN}, NAN, id="NaN at the end"),
        pytest.param({300: INF}, INF, id="infinity"),
        pytest.param(dict.fromkeys(range(1000), -INF), -INF, id="nothing possible"),
    ],
)
def test_rows_that_are_not_finite_show(values: dict[int, float], top: float) -> None:
    torch.manual_seed(0)
    clean = torch.randn(len(ROWS), 1000)
    shapes = torch.tensor([(heat, top_p, min_p) for heat, _, top_p, min_p in ROWS]).double()
    arguments = shapes, torch.tensor([row[1] for row in ROWS]), *random_numbers(len(ROWS), 1000)
    tokens, tops = sample(clean, *arguments)
    for row in range(len(ROWS)):
        broken = clean.clone()
        for place, value in values.items():
            broken[row, place] = value
        got, found = sample(broken, *arguments)
        others = torch.arange(len(ROWS)) != row
        torch.testing.assert_close(found[row], torch.tensor(top), rtol=0, atol=0, equal_nan=True)
        assert 0 <= int(got[row]) < 1000
        assert torch.equal(got[others], tokens[others])
        assert torch.equal(found[others], tops[others])


def test_threads_change_nothing() -> None:
    torch.manual_seed(0)
    shapes = torch.tensor([(heat, top_p, min_p) for heat, _, top_p, min_p in ROWS]).double()
    arguments = torch.randn(len(ROWS), 1000), shapes, torch.tensor([row[1] for row in ROWS])
    numbers = random_numbers(len(ROWS), 1000)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = sample(*arguments, *numbers)
        torch.set_num_threads(3)
        assert all(map(torch.equal, sample(*arguments, *numbers), alone))
    finally:
        torch.set_num_threads(threads)


def test_no_rows_give_no_tokens() -> None:
    tokens, tops = sample(torch.empty(0, 7), torch.empty(0, 3).double(), torch.empty(0).long(), *random_numbers(0, 7))
    assert (tokens.shape, tops.shape) == ((0,), (0,))


GOOD = {
    "logits": torch.zeros(2, 4),
    "shapes": torch.ones(2, 3).double(),
    "top_k": torch.zeros(2).long(),
    "first": torch.zeros(9).int(),
    "second": torch.zeros(9).int(),
    "starts": torch.zeros(2, 2).long(),
}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        pytest.param({"logits": torch.zeros(2, 4).double()}, "logits must be float32", id="type"),
        pytest.param({"logits": torch.zeros(4, 2).T}, "contiguous rows", id="columns"),
        pytest.param({"logits": torch.zeros(2, 0)}, "logits must be", id="no vocabulary"),
        pytest.param({"shapes": torch.ones(2, 3)}, "shapes must be", id="shapes"),
        pytest.param({"top_k": torch.zeros(3).long()}, "top_k must be", id="top_k"),
        pytest.param({"first": torch.zeros(9)}, "tables must be", id="tables"),
        pytest.param({"starts": torch.full((2, 2), 6)}, "starts must leave 4 numbers of tables of 9", id="too far"),
        pytest.param({"starts": torch.full((2, 2), -1)}, "starts must leave", id="before the beginning"),
        pytest.param({"second": torch.zeros(3).int()}, "starts must leave", id="tables too short"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: dict[str, Any], problem: str) -> None:
    sample(**GOOD)
    with pytest.raises(ValueError, match=problem):
        sample(**GOOD | wrong)
