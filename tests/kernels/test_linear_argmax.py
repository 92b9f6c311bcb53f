"""The largest value of each row of a product, found without it, against the product itself: to the last bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetide_kernels import dispatch
from pagetide_kernels.linear_argmax import linear_argmax, screen_of
from pagetide_kernels.packed_linear import linear, pack

pytestmark = pytest.mark.usefixtures("poisoned")

SHAPES = [(70, 33), (129, 1001), (64, 64), (1, 1), (5000, 96), (4097, 130)]
TYPES = [torch.float32, torch.float16, torch.bfloat16]
ROWS = (1, 2, 6, 7, 60)


def check(weight: torch.Tensor, x: torch.Tensor) -> None:
    """All ways to the largest values agree with the product."""
    own, int8 = pack(weight.clone()), pack(weight.clone(), "int8")
    for packed, screen in ((own, None), (own, screen_of(own)), (int8, None)):
        places, values = linear_argmax(x, packed, screen)
        wanted, first = linear(x, packed).max(1)
        assert torch.equal(places, first)
        torch.testing.assert_close(values, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_it_is_what_the_product_says(rows: int, columns: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    weight, x = torch.randn(rows, columns).to(dtype), torch.randn(60, columns)
    for m in ROWS:
        check(weight, x[:m])
    check(weight, torch.randn(9, columns + 3)[:, 3:])
    check(weight, x[:0])


def test_values_that_differ_in_the_last_bits_are_told_apart() -> None:
    torch.manual_seed(0)
    weight = torch.randn(1, 96).repeat(3000, 1)
    weight[torch.arange(3000), torch.randint(96, (3000,))] *= 1 + 2**-22
    check(weight, torch.randn(20, 96))


def among_small(*rows: torch.Tensor) -> torch.Tensor:
    """These rows of weights, far apart among many that are never the largest."""
    weight = torch.randn(3000, len(rows[0])) * 0.01
    for i, row in enumerate(rows):
        weight[17 + 900 * i] = row
    return weight


# Scales of 1: 10.49 becomes 10, 10.51 becomes 11. The first has the larger sum, but in 8 bits it is less by 16.
FIRST = torch.tensor([127.0] + [10.49] * 31)
OTHER = torch.tensor([127.0] + [10.51] * 16 + [10.46] * 15)


@pytest.mark.parametrize(("one", "two"), [(FIRST, OTHER), (OTHER, FIRST)], ids=["first", "second"])
def test_what_eight_bits_make_larger_than_it_is_does_not_win(one: torch.Tensor, two: torch.Tensor) -> None:
    torch.manual_seed(0)
    check(among_small(one, two), torch.ones(3, 32))


def test_what_eight_bits_of_the_left_matrix_make_larger_does_not_win() -> None:
    torch.manual_seed(0)
    larger, smaller = torch.zeros(32), torch.zeros(32)
    larger[0], larger[17:], smaller[1:17] = 12 / 127, 1, 1  # 168.9 and 168.2; in 8 bits 162 and 176
    check(among_small(larger, smaller), OTHER[None])
    check(among_small(smaller, larger), OTHER[None])


@pytest.mark.parametrize("seed", range(6))
def test_sums_that_float32_rounds_on_their_way_are_within_the_bound(seed: int) -> None:
    # Whole numbers: 8 bits lack nothing, and some rows have the same sum, but not in every order of adding.
    torch.manual_seed(seed)
    numbers = torch.randint(60, 127, (256, 31)).float()
    weight = torch.randn(600, 8192)
    for i in range(9):
        order = numbers.flatten()[torch.randperm(numbers.numel())].view(256, 31)
        weight[7 + 60 * i] = torch.cat((torch.full((256, 1), 127.0), order), 1).flatten()
    check(weight, torch.full((3, 8192), 127.0))


@pytest.mark.parametrize("scale", [1e-23, 1e-25, 1e-28])
def test_weights_whose_squares_are_no_float32_do_not_deceive_the_screen(scale: float) -> None:
    torch.manual_seed(0)
    check(torch.randn(3000, 64) * scale, torch.randn(200, 64) / scale)


def test_of_equal_rows_the_first_is_taken() -> None:
    torch.manual_seed(0)
    weight = torch.randn(100, 64).repeat(40, 1)
    check(weight, torch.randn(20, 64))


@pytest.mark.parametrize("x", [torch.zeros(7, 64), torch.full((7, 64), 1e-40)], ids=["zeros", "tiny"])
def test_rows_in_which_all_are_alike_have_the_same_largest(x: torch.Tensor) -> None:
    torch.manual_seed(0)
    mixed = torch.cat((x, torch.randn(5, 64)))
    weight, threads = torch.randn(3000, 64), torch.get_num_threads()
    try:
        for count in (1, 2, 40):
            torch.set_num_threads(count)
            check(weight, mixed[torch.randperm(12)])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_what_is_not_finite_shows(value: float) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(3000, 64), torch.randn(20, 64)
    broken = x.clone()
    broken[3, 5] = broken[11, 40] = value
    check(weight, broken)
    weight[77, 5] = weight[2000, 63] = value
    check(weight, x)


def test_a_row_of_minus_infinity_gives_the_first_place() -> None:
    weight = torch.full((200, 4), -float("inf"))
    places, values = linear_argmax(torch.ones(2, 4), pack(weight))
    assert places.tolist() == [0, 0]
    assert values.tolist() == [-float("inf")] * 2


@given(seed=st.integers(0, 2**32), spread=st.floats(0, 12), columns=st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_no_size_of_numbers_deceives_the_screen(seed: int, spread: float, columns: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    weight = torch.randn(700, columns, generator=chance)
    weight *= torch.exp(spread * torch.randn(700, columns, generator=chance))
    x = torch.randn(5, columns, generator=chance) * torch.exp(spread * torch.randn(5, columns, generator=chance))
    check(weight, x)


@pytest.mark.parametrize("left", [1e-42, 1e-23, 1e-20, 1.0, 1e18, 1e37])
@pytest.mark.parametrize("right", [1e-42, 1e-23, 1e-20, 1.0, 1e18, 1e37])
def test_neither_end_of_the_range_deceives_the_screen(left: float, right: float) -> None:
    torch.manual_seed(0)
    # Rows of very different size, whole: at one end their squares, at the other their sums leave float32.
    spread = torch.linspace(0, 3, 3000)[torch.randperm(3000)].exp()[:, None]
    check(torch.randn(3000, 70) * spread * right, torch.randn(7, 70) * left)


@pytest.mark.parametrize("seed", range(6))
def test_sums_that_overflow_on_their_way_are_those_of_the_product(seed: int) -> None:
    torch.manual_seed(seed)
    # The first half of a row adds up to about the largest float32, the second takes it away again. In 8 bits other rows
    # overflow than in float32.
    half = torch.rand(3000, 32) * 0.1 + 1
    half /= half.sum(1, keepdim=True)
    weight = torch.cat((half, -2 * half), 1) * 2.0**63  # these are never the largest
    scale = torch.linspace(0.998, 1.002, 20)[:, None] * 2.0**64
    weight[100::150] = torch.cat((half[:20], -half[:20]), 1) * scale
    x = torch.full((3, 64), 2.0**64)
    assert linear(x, pack(weight.clone())).isinf().sum() not in (0, 60)
    check(weight, x)


def test_threads_change_nothing() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(5000, 96), torch.randn(20, 96)
    packed = pack(weight)
    screen = screen_of(packed)
    alone, threads = linear_argmax(x, packed, screen), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        for got, wanted in zip(linear_argmax(x, packed, screen), alone, strict=True):
            assert torch.equal(got, wanted)
    finally:
        torch.set_num_threads(threads)


def test_without_the_ops_torch_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dispatch.VARIABLE, "torch")
    torch.manual_seed(0)
    assert screen_of(pack(torch.randn(70, 33))) is None
    check(torch.randn(70, 33), torch.randn(5, 33))


def test_weights_of_eight_bits_need_no_screen() -> None:
    assert screen_of(pack(torch.randn(70, 33), "int8")) is None


def test_what_does_not_fit_is_refused() -> None:
    packed = pack(torch.randn(70, 33))
    with pytest.raises(ValueError, match=r"x must be float32 \[m, 33\], not torch.float32 \[2, 32\]"):
        linear_argmax(torch.randn(2, 32), packed)
    if packed.panels:
        screen = screen_of(pack(torch.randn(71, 33)))
        with pytest.raises(ValueError, match="the screen is of 71 x 33 weights"):
            linear_argmax(torch.randn(2, 33), packed, screen)
        with pytest.raises(ValueError, match="need no screen"):
            linear_argmax(torch.randn(2, 33), pack(torch.randn(71, 33), "int8"), screen)
