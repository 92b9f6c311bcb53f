"""Triton's smaller ops against their float32 references: interpreted on a CPU, natively on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from pagetide_kernels.copy_blocks import copy_blocks
from pagetide_kernels.gpu import sample as sampling
from pagetide_kernels.gpu.gated import ACTIVATIONS, gated
from pagetide_kernels.gpu.move_blocks import move_blocks
from pagetide_kernels.gpu.rms_norm import rms_norm
from pagetide_kernels.gpu.rotary_cache import rotate_and_cache
from pagetide_kernels.reference import cache_ops
from pagetide_kernels.reference.gated import gated as gated_reference
from pagetide_kernels.reference.rms_norm import rms_norm as rms_norm_reference
from pagetide_kernels.reference.rotary import rotate
from pagetide_kernels.reference.sample import sample as sample_reference

from .sampling_rows import ROWS

pytestmark = [pytest.mark.usefixtures("poisoned"), pytest.mark.filterwarnings("ignore:overflow encountered in exp")]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# The interpreter cuts bfloat16 off instead of rounding it.
ROUNDED = DTYPES[: 3 if torch.cuda.is_available() else 2]
# The last rounding of each type.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def close(got: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """Assert that the op's result is the reference's, rounded to `dtype`."""
    assert got.dtype == dtype
    torch.testing.assert_close(got.float().cpu(), expected.cpu(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("plus_one", [False, True], ids=["weight", "1 + weight"])
@pytest.mark.parametrize(("rows", "size"), [(3, 37), (1, 1), (2, 1152)])
def test_rms_norm(device: torch.device, rows: int, size: int, plus_one: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    hidden = torch.randn(rows, size + 5, device=device).to(dtype)[:, :size]
    weight = torch.randn(size, device=device).to(dtype)
    expected = rms_norm_reference(hidden, weight, 1e-6, plus_one)
    close(rms_norm(hidden, weight, 1e-6, plus_one=plus_one), expected, dtype)


@pytest.mark.parametrize("tokens", [3, 0])
def test_rms_norm_of_heads_that_are_columns_of_a_merged_product(device: torch.device, tokens: int) -> None:
    torch.manual_seed(8)
    product, weight = torch.randn(tokens, 7 * 12 + 5, device=device), torch.randn(12, device=device)
    heads = product[:, 12:48].view(tokens, 3, 12)
    got = rms_norm(heads, weight, 1e-6)
    assert got.is_contiguous()
    close(got, rms_norm_reference(heads, weight, 1e-6), torch.float32)


@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
def test_rms_norm_adds_to_the_residual_first(device: torch.device, dtype: torch.dtype) -> None:
    hidden, residual = torch.randn(2, 3, 70, device=device).to(dtype)
    total = hidden + residual
    got = rms_norm(hidden, torch.ones(70, device=device, dtype=dtype), 1e-5, residual)
    assert torch.equal(residual, total)
    close(got, rms_norm_reference(total, torch.ones(70, device=device), 1e-5), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("size", [7, 1100])
def test_gated(device: torch.device, size: int, activation: str, dtype: torch.dtype) -> None:
    gate_up = torch.randn(3, 2 * size, device=device).to(dtype)
    gate_up[0, :2] = torch.tensor([200.0, -200.0])
    close(gated(gate_up, activation), gated_reference(gate_up, activation), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])
@pytest.mark.parametrize(("dim", "rotated"), [(24, 12), (40, 10), (16, 3)])
def test_rotates_and_writes_the_cache(
    device: torch.device, dim: int, rotated: int, interleaved: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(dim)
    tokens, heads, kv_heads = 5, 3, 2
    # As a merged projection leaves them: views with strides.
    qkv = torch.randn(tokens, heads + 2 * kv_heads, dim, device=device).to(dtype)
    query, key, value = qkv.split([heads, kv_heads, kv_heads], 1)
    angles = torch.randn(tokens, rotated, device=device)
    cos, sin = angles.cos(), angles.sin()
    turned = [rotate(x, cos, sin, interleaved) for x in (query, key)]
    caches = [torch.full((3, 8, kv_heads, dim), float("nan"), dtype=dtype, device=device) for _ in "kv"]
    expected = [torch.full((3, 8, kv_heads, dim), float("nan"), device=device) for _ in "kv"]
    slots = torch.tensor([23, 0, 9, -1, 4], device=device)
    stored = slots >= 0
    cache_ops.reshape_and_cache(turned[1][stored], value[stored], *expected, slots[stored])
    rotate_and_cache(query, key, value, cos, sin, *caches, slots, interleaved)
    close(query, turned[0], dtype)
    for got, wanted in zip(caches, expected, strict=True):
        assert torch.equal(got.isnan(), wanted.isnan())
        close(got.nan_to_num(), wanted.nan_to_num(), dtype)


@pytest.mark.parametrize("pairs", [[(0, 3)], [(0, 3), (0, 4), (5, 1)], []], ids=["one", "one source twice", "none"])
def test_moves_blocks_of_all_caches_at_once(device: torch.device, pairs: list[tuple[int, int]]) -> None:
    sources = [torch.randn(6, 8, 3, 50, device=device) for _ in range(3)]
    targets = [torch.full((7, 8, 3, 50), float("nan"), device=device) for _ in range(3)]
    expected = [t.clone() for t in targets]
    for source, target in zip(sources, expected, strict=True):
        cache_ops.move_blocks(source, target, pairs)
    move_blocks(sources, targets, pairs)
    for got, wanted in zip(targets, expected, strict=True):
        assert torch.equal(got.nan_to_num(-7.0), wanted.nan_to_num(-7.0))


def test_moves_blocks_within_a_cache(device: torch.device) -> None:
    cache = torch.randn(6, 8, 2, 3, device=device).half()
    expected = cache.clone()
    cache_ops.move_blocks(expected, expected, [(0, 3), (5, 1)])
    move_blocks([cache], [cache], [(0, 3), (5, 1)])
    assert torch.equal(cache, expected)


@pytest.mark.parametrize("kernels", ["torch", "triton"])
@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param([], id="nothing"),
        pytest.param([(0, 3), (5, 1)], id="apart"),
        pytest.param([(0, 1), (1, 2), (2, 0)], id="a ring: every block is read before it is written"),
    ],
)
def test_copies_in_all_caches_by_the_chosen_ops(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, kernels: str, pairs: list[tuple[int, int]]
) -> None:
    monkeypatch.setenv("PAGETIDE_KERNELS", kernels)
    caches = [torch.randn(6, 8, 2, width, device=device) for width in (4, 4, 2)]
    before = [c.clone() for c in caches]
    copy_blocks(caches, pairs)
    for cache, expected in zip(caches, before, strict=True):
        cache_ops.move_blocks(expected, expected, pairs)
        assert torch.equal(cache, expected)


def columns(rows: list[tuple[float, int, float, float]], device: torch.device) -> dict[str, torch.Tensor]:
    """temperature, top_k, top_p and min_p of each row."""
    t, k, p, m = zip(*rows, strict=True)
    return {
        "temperature": torch.tensor(t, device=device),
        "top_k": torch.tensor(k, dtype=torch.int32, device=device),
        "top_p": torch.tensor(p, device=device),
        "min_p": torch.tensor(m, device=device),
    }


@pytest.mark.parametrize("vocabulary", [1, 203])
@pytest.mark.parametrize("ties", [False, True], ids=["different logits", "many equal logits"])
def test_draws_what_sorting_would(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, ties: bool, vocabulary: int
) -> None:
    monkeypatch.setattr(sampling, "BLOCK", 128)
    torch.manual_seed(3 + ties)
    rows = ROWS[:6]
    logits = torch.randn(len(rows), vocabulary, device=device) * 2
    logits = logits.round() if ties else logits
    logits[:, 7:9] = float("-inf")
    logits[0, :4] = torch.tensor([0.0, -0.0, 0.0, -0.0])[:vocabulary]
    arguments = columns(rows, device)
    for _ in range(2):
        tables = torch.randint(0, 2**31, (2, vocabulary + 50), device=device).int()
        starts = torch.randint(0, 50, (len(rows), 2), device=device)
        pieces = [[t[s : s + vocabulary] for t, s in zip(tables, of_row, strict=True)] for of_row in starts.tolist()]
        bits = torch.stack([first ^ second for first, second in pieces])
        expected = sample_reference(*(t.cpu() for t in (logits, *arguments.values(), bits)))
        assert torch.equal(sampling.sample(logits, *arguments.values(), *tables, starts).cpu(), expected)


KEYS = torch.zeros(2, 3, 8)
CACHE = torch.zeros(1, 8, 3, 8)
ANGLES = torch.zeros(2, 4)
SLOTS = torch.arange(2)
ROW = columns([(1.0, 0, 1.0, 0.0)], torch.device("cpu"))
RANDOM = (torch.zeros(4).int(), torch.zeros(4).int(), torch.zeros(1, 2).long())


@pytest.mark.parametrize(
    ("op", "arguments", "problem"),
    [
        pytest.param(rms_norm, (torch.zeros(3), torch.zeros(3), 1e-5), "hidden must be", id="norm: no rows"),
        pytest.param(rms_norm, (torch.zeros(2, 3), torch.zeros(4), 1e-5), "weight must be", id="norm: weight"),
        pytest.param(
            rms_norm, (torch.zeros(2, 3), torch.zeros(3), 1e-5, torch.zeros(2, 4)), "residual must be", id="residual"
        ),
        pytest.param(
            rms_norm, (torch.zeros(2, 2, 3), torch.zeros(3), 1e-5, torch.zeros(2, 2, 3)), "with a residual", id="heads"
        ),
        pytest.param(rms_norm, (torch.zeros(3, 2).T, torch.zeros(3), 1e-5), "contiguous", id="norm: columns"),
        pytest.param(gated, (torch.zeros(2, 3), "silu"), "2 \\* size", id="gated: odd width"),
        pytest.param(gated, (torch.zeros(2, 4), "relu"), "must be one of", id="gated: activation"),
        pytest.param(
            rotate_and_cache, (KEYS, KEYS, KEYS, ANGLES, ANGLES, CACHE, CACHE, SLOTS.int()), "slots", id="int32 slots"
        ),
        pytest.param(
            rotate_and_cache, (KEYS, KEYS, KEYS, ANGLES, ANGLES, CACHE[:, ::2], CACHE, SLOTS), "contiguous", id="cache"
        ),
        pytest.param(
            rotate_and_cache, (KEYS, KEYS, KEYS, KEYS[0], ANGLES, CACHE, CACHE, SLOTS), "cos must be", id="angles"
        ),
        pytest.param(rotate_and_cache, (KEYS.half(), KEYS.half(), KEYS, ANGLES, ANGLES, CACHE, CACHE, SLOTS), "float16",
                     id="another dtype than the cache"),
        pytest.param(move_blocks, ([CACHE], [CACHE, CACHE], [(0, 0)]), "1 sources", id="move: counts"),
        pytest.param(move_blocks, ([CACHE], [CACHE], [(0, 0)]), "read and written", id="move: overlap"),
        pytest.param(move_blocks, ([CACHE], [CACHE.half()], [(0, 0)]), "blocks differ", id="move: sizes"),
        pytest.param(move_blocks, ([CACHE], [CACHE.clone()], [(0, 1)]), "target blocks", id="move: outside"),
        pytest.param(
            sampling.sample, (torch.zeros(1, 4).half(), *ROW.values(), *RANDOM), "float32", id="logits"
        ),
        pytest.param(
            sampling.sample, (torch.zeros(2, 4), *ROW.values(), *RANDOM), "temperature", id="columns"
        ),
        pytest.param(sampling.sample, (torch.zeros(1, 5), *ROW.values(), *RANDOM), "tables", id="tables too short"),
        pytest.param(sampling.sample, (torch.zeros(1, 4), *ROW.values(), *RANDOM[:2], SLOTS), "starts", id="starts"),
    ],
)  # fmt: skip
def test_refuses_what_does_not_fit(op: Any, arguments: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        op(*arguments)
