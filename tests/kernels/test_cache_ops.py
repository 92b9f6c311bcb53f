"""Writing, copying and swapping KV blocks against their references."""

from __future__ import annotations

import pytest
import torch

from pagetide_kernels.copy_blocks import copy_blocks
from pagetide_kernels.reference import cache_ops as reference
from pagetide_kernels.reshape_and_cache import reshape_and_cache
from pagetide_kernels.swap_blocks import swap_blocks


def make_cache(blocks: int, block_size: int = 8, heads: int = 3, dim: int = 5) -> torch.Tensor:
    return torch.full((blocks, block_size, heads, dim), float("nan"))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.nan_to_num(-7.0), b.nan_to_num(-7.0))


@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_writes_each_token_into_its_slot_only(block_size: int) -> None:
    new = torch.randn(2, 7, 3, 5)
    slots = torch.randperm(4 * block_size)[:7]
    got, expected = ([make_cache(4, block_size) for _ in "kv"] for _ in range(2))
    reshape_and_cache(new[0], new[1], *got, slots)
    reference.reshape_and_cache(new[0], new[1], *expected, slots)
    assert all(same(a, b) for a, b in zip(got, expected, strict=True))


def test_writes_from_a_transposed_view() -> None:
    new = torch.randn(3, 7, 5).transpose(0, 1)
    cache = make_cache(1)
    reshape_and_cache(new, new, cache, cache.clone(), torch.arange(7))
    assert torch.equal(cache[0, :7], new)


@pytest.mark.parametrize(
    ("key", "cache", "slots", "problem"),
    [
        pytest.param(torch.zeros(2, 3, 4), make_cache(1), torch.arange(2), "like its cache", id="another head size"),
        pytest.param(torch.zeros(2, 3, 5), make_cache(1), torch.arange(3), "slots must be", id="too many slots"),
        pytest.param(torch.zeros(2, 3, 5), make_cache(1), torch.arange(2).int(), "int64", id="int32 slots"),
        pytest.param(torch.zeros(2, 3, 5).half(), make_cache(1), torch.arange(2), "float16", id="another dtype"),
        pytest.param(torch.zeros(2, 3, 5), make_cache(2)[:, ::2], torch.arange(2), "contiguous", id="a strided cache"),
    ],
)
def test_refuses_to_write_what_does_not_fit(
    key: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        reshape_and_cache(key, key, cache, cache, slots)


PAIRS = [
    pytest.param([(0, 3)], id="one block"),
    pytest.param([(0, 3), (0, 4), (5, 1)], id="one source twice"),
    pytest.param([(0, 1), (1, 2), (2, 0)], id="a ring: every block is read before it is written"),
    pytest.param([], id="nothing"),
]


@pytest.mark.parametrize("pairs", PAIRS)
def test_copies_blocks_as_they_were(pairs: list[tuple[int, int]]) -> None:
    got = torch.randn(6, 8, 2, 4)
    expected = got.clone()
    copy_blocks([got], pairs)
    reference.move_blocks(expected, expected, pairs)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("pairs", PAIRS)
def test_swaps_blocks_between_caches(pairs: list[tuple[int, int]]) -> None:
    device, got = torch.randn(6, 8, 2, 4), make_cache(9, 8, 2, 4)
    expected = got.clone()
    swap_blocks([(device, got)], pairs)
    reference.move_blocks(device, expected, pairs)
    assert same(got, expected)


@pytest.mark.parametrize(
    ("pairs", "problem"),
    [
        pytest.param([(6, 0)], "source blocks", id="a source outside"),
        pytest.param([(0, -1)], "target blocks", id="a target outside"),
        pytest.param([(0, 2), (1, 2)], "twice", id="a target twice"),
    ],
)
def test_refuses_wrong_block_numbers(pairs: list[tuple[int, int]], problem: str) -> None:
    cache = torch.zeros(6, 8, 2, 4)
    with pytest.raises(ValueError, match=problem):
        copy_blocks([cache], pairs)
    with pytest.raises(ValueError, match=problem):
        swap_blocks([(cache, cache.clone())], pairs)


def test_refuses_to_swap_between_different_caches() -> None:
    with pytest.raises(ValueError, match="differ"):
        swap_blocks([(torch.zeros(2, 8, 1, 4), torch.zeros(2, 16, 1, 4))], [(0, 0)])
