"""Batches over scattered blocks whose unused slots hold NaN, and memory that is poisoned likewise."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from pagetide_kernels.cpu import build
from pagetide_kernels.reshape_and_cache import reshape_and_cache

# (tokens in the cache, of which are query rows)
Batch = list[tuple[int, int]]


@pytest.fixture(scope="session")
def make_case() -> Callable[..., dict[str, torch.Tensor]]:
    """`make_case(batch, heads, kv_heads, dim, block_size, dtype=float32)`, the tensors of `paged_attention`."""
    return _make_case


@pytest.fixture(scope="session")
def limits() -> Callable[[Batch], dict[str, int]]:
    """`limits(batch)`, the two numbers that `paged_attention` wants to know of a batch."""
    return lambda batch: {"max_query_len": max(q for _, q in batch), "max_context_len": max(c for c, _ in batch)}


def _make_case(
    batch: Batch, heads: int, kv_heads: int, dim: int, block_size: int, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Tensors of a batch whose blocks lie scattered; every slot that no context covers is NaN."""
    torch.manual_seed(sum(c for c, _ in batch) + dim)
    need = [-(-context // block_size) for context, _ in batch]
    numbers = list(range(sum(need) + 4))
    random.Random(1).shuffle(numbers)
    tables = torch.zeros(len(batch), max(need), dtype=torch.int32)
    caches = [torch.full((len(numbers), block_size, kv_heads, dim), float("nan"), dtype=dtype) for _ in "kv"]
    for s, (context, _) in enumerate(batch):
        mine = torch.tensor([numbers.pop() for _ in range(need[s])])
        tables[s, : need[s]] = mine
        positions = torch.arange(context)
        slots = mine[positions // block_size] * block_size + positions % block_size
        new = torch.randn(2, context, kv_heads, dim).to(dtype)
        reshape_and_cache(new[0], new[1], *caches, slots)
    counts = torch.tensor([q for _, q in batch])
    return {
        "query": torch.randn(int(counts.sum()), heads, dim).to(dtype),
        "key_cache": caches[0],
        "value_cache": caches[1],
        "block_tables": tables,
        "context_lens": torch.tensor([c for c, _ in batch], dtype=torch.int32),
        "query_starts": torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int(),
    }


@pytest.fixture
def device() -> torch.device:
    """Where Triton's kernels run: the GPU, or the CPU that interprets them."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Memory that is allocated without a value is full of NaN (of integers: of their largest value)."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing was built before."""
    monkeypatch.setenv("PAGETIDE_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "none")
    return tmp_path / "kernels"


@pytest.fixture
def quick_compiler(needs_compiler: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's compiler, which does not optimize: for tests of when it is called, and not of what it makes."""
    script = tmp_path / "quick-c++"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(build.find_compiler())} "$@" -O0\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))


@pytest.fixture
def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """`fake_compiler(shell)`: $CXX, which runs this with its output's name as $out; returns where its calls stand."""
    script, calls = tmp_path / "fake-c++", tmp_path / "calls"

    def make(shell: str) -> Path:
        calls.touch()
        script.write_text(f'#!/bin/sh\necho "$*" >> {calls}\nfor out in "$@"; do :; done\n{shell}\n')
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        return calls

    return make


@pytest.fixture
def old_compiler(fake_compiler: Callable[[str], Path]) -> Callable[..., Path]:
    """`old_compiler(flag, said="...")`: one that fails with this flag, and says this of it."""
    refusing = 'case "$*" in *{}*) echo "{}" >&2; exit 1;; esac'

    def make(flag: str, said: str = "error: unrecognized command line option '{}'") -> Path:
        return fake_compiler(f'{refusing.format(flag, said.format(flag))}\necho built > "$out"')

    return make
