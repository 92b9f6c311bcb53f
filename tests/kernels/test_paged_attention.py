"""Paged attention against its float32 reference, on odd sizes and caches whose unused slots hold NaN."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pagetide_kernels.attention_plan import make_plan
from pagetide_kernels.dispatch import VARIABLE
from pagetide_kernels.paged_attention import paged_attention
from pagetide_kernels.reference.paged_attention import paged_attention as reference

# (tokens in the cache, of which are query rows)
Batch = list[tuple[int, int]]
DECODES: Batch = [(1, 1), (37, 1), (8, 1), (64, 1), (129, 1)]
PREFILLS: Batch = [(5, 5), (33, 33), (2, 2)]
CHUNKS: Batch = [(70, 9), (40, 33), (17, 16)]
MIXED: Batch = [(50, 1), (3, 1), (19, 19), (90, 7), (1, 1)]
Case = Callable[..., dict[str, torch.Tensor]]
Limits = Callable[[Batch], dict[str, int]]


@pytest.fixture(params=["cpp", "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The implementation that a test runs on."""
    if request.param == "cpp":
        request.getfixturevalue("needs_compiler")
    monkeypatch.setenv(VARIABLE, request.param)
    return str(request.param)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(DECODES, id="decodes of very different lengths"),
        pytest.param(PREFILLS, id="whole prompts"),
        pytest.param(CHUNKS, id="chunks behind a computed beginning"),
        pytest.param(MIXED, id="decodes and chunks in one batch"),
        pytest.param([(301, 301), (600, 290)], id="chunks of more rows than a tile"),
    ],
)
@pytest.mark.parametrize(
    ("window", "soft_cap"),
    [
        pytest.param(None, None, id="all keys"),
        pytest.param(7, None, id="a window shorter than a block"),
        pytest.param(33, None, id="a window across blocks"),
        pytest.param(1, None, id="a window of the token itself"),
        pytest.param(None, 2.0, id="capped scores"),
        pytest.param(20, 2.0, id="capped scores in a window"),
    ],
)
def test_equals_the_reference(
    kernels: str, make_case: Case, limits: Limits, batch: Batch, window: int | None, soft_cap: float | None
) -> None:
    case = make_case(batch, heads=4, kv_heads=2, dim=16, block_size=16)
    expected = reference(**case, scale=0.3, sliding_window=window, soft_cap=soft_cap)
    got = paged_attention(**case, **limits(batch), scale=0.3, sliding_window=window, soft_cap=soft_cap)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dim", [80, 96, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2), (5, 1)])
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_equals_the_reference_for_every_form_of_cache(
    kernels: str, make_case: Case, limits: Limits, heads: int, kv_heads: int, dim: int, block_size: int
) -> None:
    case = make_case(MIXED, heads, kv_heads, dim, block_size)
    expected = reference(**case, scale=dim**-0.5, sliding_window=21)
    got = paged_attention(**case, **limits(MIXED), scale=dim**-0.5, sliding_window=21)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("soft_cap", [None, 2.0])
def test_bfloat16_is_the_reference_rounded(
    kernels: str, make_case: Case, limits: Limits, soft_cap: float | None
) -> None:
    case = make_case(MIXED, heads=4, kv_heads=2, dim=32, block_size=16, dtype=torch.bfloat16)
    expected = reference(**case, scale=0.2, soft_cap=soft_cap)
    got = paged_attention(**case, **limits(MIXED), scale=0.2, soft_cap=soft_cap)
    assert got.dtype == torch.bfloat16
    # Half a unit in the last place of bfloat16 is 2 ** -9; the sums before it round a few times.
    torch.testing.assert_close(got.float(), expected, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("kept", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("soft_cap", [None, 2.0])
def test_a_float32_query_over_caches_of_16_bits_is_not_rounded(
    kernels: str, make_case: Case, limits: Limits, soft_cap: float | None, kept: torch.dtype
) -> None:
    case = make_case(MIXED, heads=4, kv_heads=2, dim=40, block_size=16, dtype=kept)
    case["query"] = case["query"].float() * (1 + 2**-13)
    expected = reference(**case, scale=0.2, soft_cap=soft_cap)
    got = paged_attention(**case, **limits(MIXED), scale=0.2, soft_cap=soft_cap)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_values_may_be_narrower_than_keys(kernels: str, make_case: Case, limits: Limits) -> None:
    case = make_case(MIXED, heads=4, kv_heads=2, dim=24, block_size=16)
    case["value_cache"] = case["value_cache"][..., :16].contiguous()
    got = paged_attention(**case, **limits(MIXED), scale=0.2)
    torch.testing.assert_close(got, reference(**case, scale=0.2), rtol=1e-5, atol=1e-5)


def test_many_decodes_in_several_groups(monkeypatch: pytest.MonkeyPatch, make_case: Case, limits: Limits) -> None:
    monkeypatch.setenv(VARIABLE, "torch")
    batch: Batch = [(n, 1) for n in (1500, 1490, 700, 3, 2, 1, 690, 2)]
    case = make_case(batch, heads=2, kv_heads=1, dim=8, block_size=32)
    plan = make_plan(
        case["block_tables"], case["context_lens"], case["query_starts"], case["key_cache"].shape, sliding_window=None
    )
    assert len(plan.groups) > 1
    got = paged_attention(**case, **limits(batch), scale=0.4, plan=plan)
    torch.testing.assert_close(got, reference(**case, scale=0.4), rtol=1e-5, atol=1e-5)


def test_a_window_reads_no_block_before_it(kernels: str, make_case: Case) -> None:
    case = make_case([(100, 1), (90, 5)], heads=2, kv_heads=1, dim=8, block_size=8)
    expected = reference(**case, scale=0.4, sliding_window=10)
    for s, last_unseen_block in ((0, 100 - 10), (1, 90 - 5 - 10)):
        for block in case["block_tables"][s, : last_unseen_block // 8].tolist():
            case["key_cache"][block] = case["value_cache"][block] = float("nan")
    got = paged_attention(**case, max_query_len=5, max_context_len=100, scale=0.4, sliding_window=10)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param({"query": torch.zeros(4, 16)}, "query must be", id="query without heads"),
        pytest.param({"query": torch.zeros(29, 3, 16)}, "does not fit", id="heads not a multiple of KV heads"),
        pytest.param({"query": torch.zeros(29, 4, 8)}, "does not fit", id="another head size"),
        pytest.param({"query": torch.zeros(29, 4, 16).half()}, "must be equal", id="a query narrower than its cache"),
        pytest.param({"value_cache": torch.zeros(14, 16, 2, 16).half()}, "caches differ", id="values of another dtype"),
        pytest.param({"context_lens": torch.ones(5)}, "must be int32", id="lengths as floats"),
        pytest.param({"query_starts": torch.zeros(5, dtype=torch.int32)}, "query_starts", id="a start missing"),
        pytest.param({"block_tables": torch.zeros(3, 9, dtype=torch.int32)}, "3 rows", id="a table missing"),
        pytest.param({"max_context_len": 1000}, "room", id="a context longer than its table"),
        pytest.param({"max_query_len": 0}, "max_query_len", id="no query row"),
        pytest.param({"sliding_window": 0}, "sliding_window", id="an empty window"),
        pytest.param({"soft_cap": 0.0}, "soft_cap", id="a cap of zero"),
    ],
)
def test_refuses_what_does_not_fit(
    kernels: str, make_case: Case, limits: Limits, change: dict[str, object], problem: str
) -> None:
    case = make_case(MIXED, heads=4, kv_heads=2, dim=16, block_size=16)
    with pytest.raises(ValueError, match=problem):
        paged_attention(**{**case, **limits(MIXED), "scale": 0.3, **change})


def test_refuses_a_plan_of_another_window(monkeypatch: pytest.MonkeyPatch, make_case: Case, limits: Limits) -> None:
    monkeypatch.setenv(VARIABLE, "torch")
    case = make_case(MIXED, heads=4, kv_heads=2, dim=16, block_size=16)
    plan = make_plan(case["block_tables"], case["context_lens"], case["query_starts"], case["key_cache"].shape, 5)
    with pytest.raises(ValueError, match="another window"):
        paged_attention(**case, **limits(MIXED), scale=0.3, sliding_window=6, plan=plan)


@pytest.mark.usefixtures("needs_compiler")
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param({"block_tables": torch.full((5, 6), 99, dtype=torch.int32)}, "do not exist", id="a block"),
        pytest.param({"query_starts": torch.tensor([0, 1, 2, 21, 28, 40]).int()}, "do not exist", id="a row"),
        pytest.param({"context_lens": torch.tensor([50, 3, 19, 900, 1]).int()}, "do not exist", id="a column"),
    ],
)
def test_the_native_op_reads_nothing_outside(
    monkeypatch: pytest.MonkeyPatch, make_case: Case, limits: Limits, change: dict[str, torch.Tensor], problem: str
) -> None:
    monkeypatch.setenv(VARIABLE, "cpp")
    case = make_case(MIXED, heads=4, kv_heads=2, dim=16, block_size=16)
    with pytest.raises(ValueError, match=problem):
        paged_attention(**{**case, **change}, **limits(MIXED), scale=0.3)


@pytest.mark.usefixtures("needs_compiler")
def test_a_decode_is_the_same_to_the_bit_whatever_its_batch_and_threads(
    monkeypatch: pytest.MonkeyPatch, make_case: Case
) -> None:
    monkeypatch.setenv(VARIABLE, "cpp")
    case = make_case([(700, 1), (19, 19), (300, 1)], heads=4, kv_heads=2, dim=40, block_size=16)
    together = paged_attention(**case, max_query_len=19, max_context_len=700, scale=0.3)
    alone = {"block_tables": case["block_tables"][:1], "context_lens": case["context_lens"][:1]}
    alone |= {"query": case["query"][:1], "query_starts": case["query_starts"][:2]}
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        got = paged_attention(**case | alone, max_query_len=1, max_context_len=700, scale=0.3)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(got[0], together[0])


@pytest.mark.usefixtures("needs_compiler")
@pytest.mark.parametrize("window", [None, 150])
def test_a_row_of_a_prompt_is_the_same_to_the_bit_whatever_is_computed_with_it(
    monkeypatch: pytest.MonkeyPatch, make_case: Case, window: int | None
) -> None:
    monkeypatch.setenv(VARIABLE, "cpp")
    case = make_case([(700, 700), (90, 90)], heads=6, kv_heads=2, dim=40, block_size=16)
    whole = paged_attention(**case, max_query_len=700, max_context_len=700, scale=0.3, sliding_window=window)
    before = torch.get_num_threads()
    try:
        for threads, count in ((1, 699), (3, 203), (16, 203), (2, 2)):
            torch.set_num_threads(threads)
            starts = torch.tensor([0, count], dtype=torch.int32)
            piece = {"query": case["query"][700 - count : 700], "query_starts": starts}
            piece |= {name: case[name][:1] for name in ("block_tables", "context_lens")}
            got = paged_attention(
                **case | piece, max_query_len=count, max_context_len=700, scale=0.3, sliding_window=window
            )
            assert torch.equal(got, whole[700 - count : 700])
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("needs_compiler")
def test_keys_whose_scores_are_minus_infinity_weigh_nothing(
    monkeypatch: pytest.MonkeyPatch, make_case: Case, limits: Limits
) -> None:
    monkeypatch.setenv(VARIABLE, "cpp")
    batch: Batch = [(300, 1), (300, 200)]
    case = make_case(batch, heads=4, kv_heads=2, dim=16, block_size=16)
    case["query"].abs_()
    for s in range(2):
        for block in case["block_tables"][s, :17].tolist():  # more than are taken at a time
            case["key_cache"][block] = float("-inf")
    expected = reference(**case, scale=0.3)
    assert expected.isfinite().any()
    got = paged_attention(**case, **limits(batch), scale=0.3)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_nan_and_infinity_in_one_sequence_stay_there(kernels: str, make_case: Case, limits: Limits) -> None:
    case = make_case(MIXED, heads=4, kv_heads=2, dim=16, block_size=16)
    clean = paged_attention(**case, **limits(MIXED), scale=0.3)
    case["key_cache"][case["block_tables"][0, 1], 3] = float("nan")
    case["key_cache"][case["block_tables"][3, 0], 3] = float("inf")
    got = paged_attention(**case, **limits(MIXED), scale=0.3)
    broken = torch.tensor([row == 0 or 21 <= row < 28 for row in range(29)])
    assert got[broken].isnan().all()
    torch.testing.assert_close(got[~broken], clean[~broken], rtol=1e-5, atol=1e-5)
