"""Recorded decode steps: padding changes no answer. On a GPU what is replayed is a CUDA graph, elsewhere a call."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest
import torch

from pagetide_server.engine.sequence import Row, Step
from pagetide_server.model.batch import make_batch
from pagetide_server.model.graphs import DecodeGraphs, graph_sizes
from pagetide_server.model.loader import LoadedModel


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        pytest.param(1, [1], id="one"),
        pytest.param(6, [1, 2, 4, 6], id="few"),
        pytest.param(20, [1, 2, 4, 8, 16, 20], id="steps of eight, and the most"),
        pytest.param(100, [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 100], id="steps of sixteen from 64"),
    ],
)
def test_sizes(most: int, sizes: list[int]) -> None:
    assert graph_sizes(most) == sizes


@pytest.mark.parametrize("rows", [1, 3, 5, 6])
@torch.inference_mode()
def test_a_padded_batch_computes_and_stores_the_same(
    rows: int, loaded_tiny: Callable[[str], LoadedModel], toy: types.SimpleNamespace
) -> None:
    loaded = loaded_tiny("gemma3")
    runners = [toy.poisoned_runner(loaded, 24, 8) for _ in range(2)]
    graphs = DecodeGraphs(runners[1]._forward, 6, 64, 8, loaded.device)
    prompts = [[20 + i + j for j in range(3 * i + 1)] for i in range(rows)]
    sequences = [toy.make_sequence(p, list(range(1 + 3 * i, 4 + 3 * i))) for i, p in enumerate(prompts)]
    prefill = Step(rows=[Row(s, 0, len(s.tokens), samples=True) for s in sequences])
    logits = [runner.execute(prefill) for runner in runners]
    toy.settle(prefill, logits[0])
    for _ in range(3):
        step = Step(rows=[Row(s, s.computed, 1, samples=True) for s in sequences])
        batch = make_batch(step, 8, loaded.device)
        assert graphs.fits(batch)
        expected, got = runners[0].execute(step), graphs.run(batch)
        torch.testing.assert_close(got, expected.sampling, rtol=1e-4, atol=1e-4)
        toy.settle(step, expected)
    for one, other in zip(runners[0].caches, runners[1].caches, strict=True):
        # Recording has written into block 0.
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a[1:].isnan(), b[1:].isnan())
            torch.testing.assert_close(a[1:].nan_to_num(), b[1:].nan_to_num(), rtol=1e-4, atol=1e-4)


def test_only_decodes_that_are_all_wanted_fit(
    loaded_tiny: Callable[[str], LoadedModel], toy: types.SimpleNamespace
) -> None:
    graphs = DecodeGraphs(lambda batch: torch.zeros(len(batch.context_lens), 5), 2, 64, 8, torch.device("cpu"))
    sequences = [toy.make_sequence([5, 6, 7], [i]) for i in range(3)]

    def fits(*rows: Row) -> bool:
        return graphs.fits(make_batch(Step(rows=list(rows)), 8, torch.device("cpu")))

    assert fits(*(Row(s, 2, 1, samples=True) for s in sequences[:2]))
    assert not fits(*(Row(s, 2, 1, samples=True) for s in sequences))
    assert not fits(Row(sequences[0], 1, 2, samples=True))
    assert not fits(Row(sequences[0], 0, 1, samples=False))
