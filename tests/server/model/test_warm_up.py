"""The first steps meet every form in which kernels are compiled for steps, and leave the blocks of others alone."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pagetide_server.engine.sampling.sampler import Sampler
from pagetide_server.model.loader import LoadedModel
from pagetide_server.warm_up import first_steps, warm_up

pytest.importorskip("triton")

from pagetide_kernels.gpu import move_blocks, paged_attention, sample


@pytest.mark.parametrize("window", [1, 9, 512, 40_000])
def test_all_lies_in_the_block_of_nobody_and_in_the_window(window: int) -> None:
    for step in first_steps(7, 8, window):
        for row in step.rows:
            assert set(row.sequence.blocks) == {7}
            assert 0 < row.start + row.count <= min(window, 8 * len(row.sequence.blocks))


def test_all_forms_are_met(
    monkeypatch: pytest.MonkeyPatch, loaded_tiny: Callable[[str], LoadedModel], toy: types.SimpleNamespace
) -> None:
    monkeypatch.setenv("PAGETIDE_KERNELS", "triton")
    loaded = loaded_tiny("qwen3")
    runner, met = toy.poisoned_runner(loaded, 5, 8), set()

    def watch(owner: Any, name: str, tell: Callable[..., object]) -> None:
        plain = getattr(owner, name)

        def watched(*args: Any, **options: Any) -> Any:
            met.add(tell(*args))
            return plain(*args, **options)

        monkeypatch.setattr(owner, name, watched)

    many = paged_attention.CHUNK_ROWS
    watch(paged_attention, "attend", lambda query, k, v, tables, lengths, starts, most, longest, *others: (
        "attention", len(query) >= many * len(lengths), most == 1 and longest > paged_attention.SPLIT))  # fmt: skip
    watch(move_blocks, "move_blocks", lambda *args: "copies")
    watch(sample, "sample", lambda *args: "drawing")
    warm_up(runner, Sampler(loaded.vocab_size, loaded.device), 2000)
    attention = {("attention", True, False), ("attention", False, False), ("attention", False, True)}
    assert met == {*attention, "copies", "drawing"}
    for part in (part for cache in runner.caches for part in cache):
        assert torch.isnan(part[1:5]).all()
