"""The greatest step that the limits allow: what activations are measured with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pagetide_server.engine.sequence import Step
from pagetide_server.model.limits import BatchLimits
from pagetide_server.model.loader import LoadedModel
from pagetide_server.model.profile import greatest_step, peak_bytes
from pagetide_server.model.runner import Runner, StepLogits

Load = Callable[[str], LoadedModel]


@pytest.mark.parametrize(
    ("seqs", "tokens", "window", "counts"),
    [
        pytest.param(4, 100, 512, [1, 1, 1, 97], id="one long prompt beside decodes"),
        pytest.param(3, 100, 40, [20, 40, 40], id="prompts as long as the window"),
        pytest.param(8, 5, 512, [1, 1, 1, 1, 1], id="fewer tokens than sequences"),
        pytest.param(2, 100, 10, [10, 10], id="windows too short for all tokens"),
    ],
)
def test_the_greatest_step(seqs: int, tokens: int, window: int, counts: list[int]) -> None:
    step, blocks = greatest_step(BatchLimits(seqs, tokens), window, 16)
    assert [row.count for row in step.rows] == counts
    assert len(step.sampling()) == len(counts)
    # Attention gathers all that lies before a row.
    assert {row.start + row.count for row in step.rows} == {window}
    assert max(block for row in step.rows for block in row.sequence.blocks) < blocks


def test_the_greatest_step_of_a_long_window_needs_few_blocks() -> None:
    step, blocks = greatest_step(BatchLimits(256, 8192), 131_072, 16)
    assert max(row.start + row.count for row in step.rows) == 131_072
    assert blocks <= 64


def test_the_greatest_step_runs(loaded_tiny: Load) -> None:
    loaded = loaded_tiny("qwen2-sliding")
    step, blocks = greatest_step(BatchLimits(5, 70), loaded.max_model_len, 16)
    logits = Runner(loaded, blocks, 0, 16).execute(step)
    assert logits.written().shape == (5, loaded.vocab_size)


def test_memory_is_measured_with_long_decodes_too(loaded_tiny: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("empty_cache", "reset_peak_memory_stats", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda *device: 0)
    execute, met = Runner.execute, []

    def watched(runner: Runner, step: Step) -> StepLogits:
        met.append([(row.start, row.count) for row in step.rows])
        return execute(runner, step)

    monkeypatch.setattr(Runner, "execute", watched)
    peak_bytes(loaded_tiny("qwen2-sliding"), BatchLimits(3, 40), 200, 16)
    # Attention splits contexts only where no row is a chunk.
    assert met == [[(199, 1), (199, 1), (162, 38)], [(199, 1)] * 3]
