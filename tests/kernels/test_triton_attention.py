"""Triton's paged attention against the float32 reference: interpreted on a CPU, natively on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pagetide_kernels.dispatch import VARIABLE
from pagetide_kernels.paged_attention import paged_attention
from pagetide_kernels.reference.paged_attention import paged_attention as reference

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("poisoned", "triton_kernels")

Batch = list[tuple[int, int]]
Case = Callable[..., dict[str, torch.Tensor]]
Limits = Callable[[Batch], dict[str, int]]
MIXED: Batch = [(50, 1), (3, 1), (19, 19), (90, 7), (1, 1)]
# The interpreter multiplies bfloat16 wrongly (Triton 3.7 to 3.9).
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * torch.cuda.is_available()
# Of 16 bits, weights are rounded before they meet the values, and the result is.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.fixture
def triton_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "triton")


def check(case: dict[str, torch.Tensor], limits: dict[str, int], device: torch.device, **options: float | None) -> None:
    """Assert that the op equals its reference."""
    expected = reference(**case, **options)  # type: ignore[arg-type]
    there = {name: tensor.to(device) for name, tensor in case.items()}
    got = paged_attention(**there, **limits, **options)  # type: ignore[arg-type]
    dtype = case["query"].dtype
    assert got.dtype == dtype
    torch.testing.assert_close(got.float().cpu(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("batch", "window", "soft_cap"),
    [
        pytest.param(MIXED, None, None, id="decodes and chunks"),
        pytest.param(MIXED, 7, 2.0, id="a window shorter than a block, capped"),
        pytest.param([(129, 1), (37, 1), (1, 1)], 33, None, id="decodes in a window"),
        pytest.param([(18, 5), (463, 129)], None, None, id="chunks behind a computed beginning"),
        pytest.param([(18, 18), (200, 129)], 20, None, id="chunks of more rows than a tile in a window"),
    ],
)
def test_equals_the_reference(
    make_case: Case,
    limits: Limits,
    device: torch.device,
    batch: Batch,
    window: int | None,
    soft_cap: float | None,
    dtype: torch.dtype,
) -> None:
    case = make_case(batch, heads=4, kv_heads=2, dim=16, block_size=16, dtype=dtype)
    check(case, limits(batch), device, scale=0.3, sliding_window=window, soft_cap=soft_cap)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "block_size"),
    [
        pytest.param(4, 4, 80, 8, id="one query head a KV head, 80, blocks of 8"),
        pytest.param(8, 2, 96, 32, id="groups of four, 96, blocks of 32"),
        pytest.param(5, 1, 128, 16, id="a group of five, 128"),
        pytest.param(2, 1, 256, 16, id="256"),
        pytest.param(34, 2, 24, 16, id="groups larger than the least tile"),
        pytest.param(67, 1, 16, 16, id="a group larger than the largest tile"),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equals_the_reference_for_every_form_of_cache(
    make_case: Case,
    limits: Limits,
    device: torch.device,
    heads: int,
    kv_heads: int,
    dim: int,
    block_size: int,
    dtype: torch.dtype,
) -> None:
    batch: Batch = [(41, 1), (5, 5), (37, 3)]
    case = make_case(batch, heads, kv_heads, dim, block_size, dtype=dtype)
    check(case, limits(batch), device, scale=dim**-0.5, sliding_window=21)


@pytest.mark.parametrize("window", [pytest.param(None, id="all keys"), pytest.param(100, id="a window in two parts")])
def test_long_decodes_are_joined_from_parts(
    make_case: Case, limits: Limits, device: torch.device, window: int | None
) -> None:
    batch: Batch = [(1328, 1), (2, 1), (1024, 1), (2100, 1), (1100, 1)]
    case = make_case(batch, heads=4, kv_heads=2, dim=24, block_size=32)
    check(case, limits(batch), device, scale=0.3, sliding_window=window)


def test_more_parts_than_are_joined_at_once(make_case: Case, limits: Limits, device: torch.device) -> None:
    batch: Batch = [(17_500, 1), (16_385, 1)]
    check(make_case(batch, heads=1, kv_heads=1, dim=16, block_size=32), limits(batch), device, scale=0.6)


def test_parts_that_hold_nothing_change_no_bit(make_case: Case, device: torch.device) -> None:
    # As in a recorded graph, whose grid is made for the longest context.
    case = {k: v.to(device) for k, v in make_case([(70, 1), (3, 1)], 4, 2, 16, 16).items()}
    expected = paged_attention(**case, max_query_len=1, max_context_len=70, scale=0.3)
    case["block_tables"] = torch.nn.functional.pad(case["block_tables"], (0, 1100))
    got = paged_attention(**case, max_query_len=1, max_context_len=17_000, scale=0.3)
    assert torch.equal(got, expected)


def test_one_sequence_of_one_block(make_case: Case, limits: Limits, device: torch.device) -> None:
    case = make_case([(3, 1)], heads=1, kv_heads=1, dim=16, block_size=8)
    check(case, limits([(3, 1)]), device, scale=0.3)


def test_values_may_be_narrower_than_keys(make_case: Case, limits: Limits, device: torch.device) -> None:
    case = make_case(MIXED, heads=4, kv_heads=2, dim=24, block_size=16)
    case["value_cache"] = case["value_cache"][..., :16].contiguous()
    check(case, limits(MIXED), device, scale=0.2)


def test_reads_a_transposed_query(make_case: Case, limits: Limits, device: torch.device) -> None:
    case = make_case(MIXED, heads=4, kv_heads=2, dim=16, block_size=16)
    case["query"] = case["query"].transpose(0, 1).contiguous().transpose(0, 1)
    check(case, limits(MIXED), device, scale=0.3)


def test_a_decode_is_the_same_to_the_bit_whatever_its_batch(make_case: Case, device: torch.device) -> None:
    case = {k: v.to(device) for k, v in make_case([(1200, 1), (3, 1), (300, 1)], 4, 2, 16, 16).items()}
    together = paged_attention(**case, max_query_len=1, max_context_len=1200, scale=0.3)
    alone = {"block_tables": case["block_tables"][:1], "context_lens": case["context_lens"][:1]}
    alone |= {"query": case["query"][:1], "query_starts": case["query_starts"][:2]}
    got = paged_attention(**case | alone, max_query_len=1, max_context_len=1200, scale=0.3)
    assert torch.equal(got[0], together[0])


def test_nan_in_one_sequence_stays_there(make_case: Case, limits: Limits, device: torch.device) -> None:
    case = {k: v.to(device) for k, v in make_case(MIXED, 4, 2, 16, 16).items()}
    clean = paged_attention(**case, **limits(MIXED), scale=0.3)
    case["key_cache"][case["block_tables"][0, 1], 3] = float("nan")
    got = paged_attention(**case, **limits(MIXED), scale=0.3)
    assert got[0].isnan().all()
    torch.testing.assert_close(got[1:], clean[1:], rtol=1e-5, atol=1e-5)
