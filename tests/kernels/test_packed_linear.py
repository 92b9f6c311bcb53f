"""Matrix products with packed weights against their float32 reference, on odd sizes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from pagetide_kernels import dispatch
from pagetide_kernels.packed_linear import PackedWeight, linear, look_up, pack
from pagetide_kernels.reference import linear as reference

pytestmark = pytest.mark.usefixtures("poisoned")

SHAPES = [(70, 33), (129, 1001), (64, 64), (1, 1), (640, 96), (200, 130)]
TYPES = [torch.float32, torch.float16, torch.bfloat16]
# One row, less and more than a tile of rows, and more than are widened at a time.
ROWS = (1, 2, 5, 6, 7, 17, 60)


def made(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights, inputs of 60 rows)"""
    torch.manual_seed(rows + columns)
    return torch.randn(rows, columns).to(dtype), torch.randn(60, columns)


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_weights_of_their_own_type_lose_nothing(rows: int, columns: int, dtype: torch.dtype) -> None:
    weight, x = made(rows, columns, dtype)
    bias = torch.randn(rows)
    packed = pack(weight.clone())
    exact = reference.linear(x.double(), weight.double(), bias=bias.double())
    for m in ROWS:
        got = linear(x[:m], packed, bias)
        # (As many roundings as columns, of sums as large as the root of their number.)
        torch.testing.assert_close(got.double(), exact[:m], rtol=0, atol=1e-6 * columns**0.5 * max(4, columns**0.5))
    assert torch.equal(look_up(torch.arange(rows), packed), weight.float())


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_eight_bits_are_what_the_reference_says(rows: int, columns: int, dtype: torch.dtype) -> None:
    weight, x = made(rows, columns, dtype)
    numbers, scales = reference.quantize(weight)
    packed = pack(weight.clone(), "int8")
    torch.testing.assert_close(look_up(torch.arange(rows), packed), reference.widened(numbers, scales))
    left = reference.rounded(x) if packed.panels else x
    exact = reference.linear(left.double(), reference.widened(numbers, scales).double())
    # Numbers that lie half-way between two may be rounded either way where the scales differ in their last bit.
    torch.testing.assert_close(linear(x, packed).double(), exact, rtol=1e-3, atol=2e-2)
    difference = linear(x, packed).double() - x.double() @ weight.double().T
    assert difference.norm() <= 0.01 * (x.double() @ weight.double().T).norm()


@pytest.mark.parametrize("kind", ["own", "int8"])
def test_a_row_does_not_depend_on_its_batch_mates_nor_on_threads(kind: str) -> None:
    weight, x = made(129, 1001)
    packed = pack(weight, kind)
    if not packed.panels:
        pytest.skip("torch's own products promise nothing of the kind")
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        together = linear(x, packed)
        for m in ROWS:
            assert torch.equal(linear(x[:m], packed), together[:m])
        torch.set_num_threads(3)
        assert torch.equal(linear(x, packed), together)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("kind", ["own", "int8"])
def test_merged_weights_give_the_same_bits(kind: str) -> None:
    weight, x = made(200, 130)
    parts = [linear(x, pack(part.clone(), kind)) for part in weight.split([128, 40, 32])]
    merged = pack(weight.clone(), kind)
    if not merged.panels:
        pytest.skip("torch's own products promise nothing of the kind")
    assert torch.equal(torch.cat(parts, -1), linear(x, merged))


@pytest.mark.parametrize("kind", ["own", "int8"])
def test_nan_and_infinity_stay_in_their_row(kind: str) -> None:
    weight, x = made(70, 130)
    packed = pack(weight, kind)
    clean = linear(x, packed)
    x[3, 5], x[9, 100] = float("nan"), float("inf")
    got = linear(x, packed)
    assert not got[[3, 9]].isfinite().any()
    others = [i for i in range(60) if i not in (3, 9)]
    assert torch.equal(got[others], clean[others])


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("kind", ["own", "int8"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_broken_weight_shows_in_its_output(
    value: float, kind: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(dispatch.VARIABLE, kernels)
    weight, x = made(70, 130)
    weight[7, 5] = value
    got = linear(x, pack(weight, kind))
    assert not got[:, 7].isfinite().any()
    assert got[:, [*range(7), *range(8, 70)]].isfinite().all()


@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-37, 1e-31, 1e-29])
def test_tiny_numbers_lose_no_more_than_their_size(size: float) -> None:
    weight, x = made(70, 130)
    x *= size
    packed = pack(weight.clone(), "int8")
    assert (linear(x, packed) - x @ weight.T).abs().max() < 0.1 * size * 130 + 1e-27
    torch.testing.assert_close(reference.rounded(x), x, rtol=0, atol=0.02 * size + 1e-30)


@pytest.mark.parametrize("kind", ["own", "int8"])
def test_no_rows_give_no_rows(kind: str) -> None:
    weight, x = made(70, 33)
    packed = pack(weight, kind)
    assert linear(x[:0], packed).shape == (0, 70)
    assert look_up(torch.empty(0, dtype=torch.long), packed).shape == (0, 33)


# The largest buffer of each call is more than what the process may still take, and than what glibc keeps for it.
KEEPS_NOTHING = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
LITTLE_MEMORY = """
import pathlib, resource, torch
from pagetide_kernels.packed_linear import linear, pack
packed, weight = {kind: pack(torch.randn(1, 1), kind) for kind in ("own", "int8")}, torch.randn(64, 1 << 20)
x = torch.randn(98304, 1)
linear(x[:1], packed["own"])
size = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 20), resource.RLIM_INFINITY))
for call in (lambda: pack(weight), lambda: linear(x, packed["own"]), lambda: linear(x, packed["int8"])):
    try:
        call()
    except MemoryError as error:
        print(error)
"""


@pytest.mark.parametrize("rows", [262_144, 262_152, 262_147], ids=["aligned", "a part of a panel", "rows that are not"])
@pytest.mark.parametrize("kind", ["own", "int8"])
def test_a_large_result_is_that_of_its_halves(kind: str, rows: int) -> None:
    """Above 32 MiB it is written past the caches."""
    torch.manual_seed(rows)
    packed, x = pack(torch.randn(rows, 33), kind), torch.randn(34, 33)
    if not packed.panels:
        pytest.skip("torch's own products promise nothing of the kind")
    whole = linear(x, packed)
    assert whole.nbytes > 32 << 20 > whole[:17].nbytes
    assert torch.equal(whole, torch.cat([linear(x[:17], packed), linear(x[17:], packed)]))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm")
def test_memory_that_runs_out_is_an_error_of_the_call() -> None:
    if not pack(torch.ones(1, 1)).panels:
        pytest.skip("torch has its own error")
    environment = {**os.environ, **KEEPS_NOTHING}
    done = subprocess.run(
        [sys.executable, "-c", LITTLE_MEMORY], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    sums = "no room for the sums of a matrix product"
    assert done.stdout.splitlines() == ["no room to pack weights", sums, sums]


def test_rows_of_zeros_have_a_scale_of_zero() -> None:
    weight, x = made(70, 130)
    weight[7] = 0
    x[4] = 0
    packed = pack(weight, "int8")
    assert (linear(x, packed)[:, 7] == 0).all()
    assert (linear(x, packed)[4] == 0).all()


def test_inputs_need_not_be_contiguous() -> None:
    weight, x = made(70, 33)
    packed = pack(weight)
    wide = torch.randn(60, 99)
    wide[:, 33:66] = x
    assert torch.equal(linear(wide[:, 33:66], packed), linear(x, packed))
    assert torch.equal(linear(x.t().contiguous().t(), packed), linear(x, packed))
    assert linear(x.view(3, 4, 5, 33), packed).shape == (3, 4, 5, 70)


def test_without_a_compiler_torch_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dispatch.VARIABLE, "torch")
    weight, x = made(70, 33)
    packed = {kind: pack(weight.clone(), kind) for kind in ("own", "int8")}
    assert not any(p.panels for p in packed.values())
    exact = x @ weight.T
    torch.testing.assert_close(linear(x, packed["own"]), exact)
    assert (linear(x, packed["int8"]) - exact).norm() < 0.01 * exact.norm()


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        pytest.param(lambda w, p: pack(w[0]), "float matrix on the CPU", id="a vector as weights"),
        pytest.param(lambda w, p: pack(w.long()), "float matrix on the CPU", id="weights of whole numbers"),
        pytest.param(lambda w, p: pack(w[:, :0]), "float matrix on the CPU", id="weights without a column"),
        pytest.param(lambda w, p: pack(w, "int4"), "one of own, int8", id="a kind that is not there"),
        pytest.param(lambda w, p: linear(torch.randn(2, 5), p), r"\[\.\.\., 33\]", id="x of another width"),
        pytest.param(lambda w, p: linear(torch.randn(2, 33).half(), p), "float32", id="x of another type"),
        pytest.param(lambda w, p: linear(torch.randn(2, 33), p, torch.randn(3)), "bias", id="a short bias"),
    ],
)
def test_what_does_not_fit_is_refused(call: object, problem: str) -> None:
    weight, _ = made(70, 33)
    packed: PackedWeight = pack(weight.clone())
    with pytest.raises(ValueError, match=problem):
        call(weight, packed)  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["own", "int8"])
@pytest.mark.parametrize("wrong", [-1, 70])
def test_a_row_that_is_not_there_is_refused(kind: str, wrong: int) -> None:
    packed = pack(made(70, 33)[0], kind)
    if not packed.panels:
        pytest.skip("torch counts from the end")
    with pytest.raises(IndexError, match=r"0\.\.69"):
        look_up(torch.tensor([3, wrong]), packed)
