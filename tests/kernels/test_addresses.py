"""Caches of 32,768 blocks, whose last ones lie behind the numbers of 32 bits."""

from __future__ import annotations

import mmap

import pytest
import torch

from pagetide_kernels.dispatch import VARIABLE
from pagetide_kernels.paged_attention import paged_attention
from pagetide_kernels.reference.rotary import rotate

pytest.importorskip("triton")

# 2.3e9 numbers, and as few bytes as that takes.
SHAPE = (32768, 16, 17, 256)


@pytest.fixture
def caches(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Keys and values, of which the last block is NaN; on a CPU nothing else takes memory, as nobody touches it."""
    monkeypatch.setenv(VARIABLE, "triton")
    size = 2 * torch.Size(SHAPE).numel()
    if device.type == "cuda":
        if torch.cuda.mem_get_info()[0] < 2.2 * size:
            pytest.skip("needs 10 GB of free memory on the GPU")
        made = [torch.empty(SHAPE, dtype=torch.float16, device=device) for _ in "kv"]
    else:
        made = [torch.frombuffer(_untouched(size), dtype=torch.float16).view(SHAPE) for _ in "kv"]
    for cache in made:
        cache[-1] = float("nan")
    return made


def _untouched(size: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, size)
    except OSError as error:
        pytest.skip(f"needs 10 GB of addresses, more than this process may have: {error}")


def test_attention_reads_the_last_block(caches: list[torch.Tensor], device: torch.device) -> None:
    for cache in caches:
        cache[-1, :13] = torch.randn(13, *SHAPE[2:]).to(cache)
    case = {
        "query": torch.randn(1, *SHAPE[2:], device=device).half(),
        "context_lens": torch.tensor([13], dtype=torch.int32, device=device),
        "query_starts": torch.tensor([0, 1], dtype=torch.int32, device=device),
    }
    table = torch.tensor([[SHAPE[0] - 1]], dtype=torch.int32, device=device)
    limits = {"max_query_len": 1, "max_context_len": 13, "scale": 0.1}
    got = paged_attention(**case, **limits, key_cache=caches[0], value_cache=caches[1], block_tables=table)
    near = {"key_cache": caches[0][-1:].clone(), "value_cache": caches[1][-1:].clone(), "block_tables": table * 0}
    assert not got.isnan().any()
    assert torch.equal(got, paged_attention(**case, **limits, **near))


def test_keys_and_values_are_written_to_the_last_slot(caches: list[torch.Tensor], device: torch.device) -> None:
    from pagetide_kernels.gpu.rotary_cache import rotate_and_cache

    query, key, value = (torch.randn(1, *SHAPE[2:], device=device).half() for _ in range(3))
    angles = torch.randn(1, SHAPE[3] // 2, device=device)
    slots = torch.tensor([SHAPE[0] * SHAPE[1] - 1], device=device)
    rotate_and_cache(query, key, value, angles.cos(), angles.sin(), *caches, slots)
    assert torch.equal(caches[1][-1, -1], value[0])
    turned = rotate(key, angles.cos(), angles.sin())[0]
    torch.testing.assert_close(caches[0][-1, -1].float(), turned, rtol=1e-3, atol=1e-3)
    assert caches[0][-1, :-1].isnan().all()
