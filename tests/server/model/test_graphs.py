"""Recorded decode steps: choice, padding, and that a replay answers like an eager step.

On a GPU what is replayed are CUDA graphs; elsewhere a call on the same buffers stands in for them.
"""

from __future__ import annotations

import copy
import logging
import types
from collections.abc import Callable

import pytest
import torch

from pagetide_server.engine.sequence import UNKNOWN_TOKEN, DeviceTokens, Row, Sequence, Step
from pagetide_server.model.batch import host_batch
from pagetide_server.model.graphs import DecodeGraphs, GraphLimits, Work, graph_contexts, graph_sizes
from pagetide_server.model.loader import LoadedModel
from pagetide_server.model.projections import merge_projections
from pagetide_server.model.recording import recorded_bytes, recorder_for, total_bytes
from pagetide_server.model.runner import Runner
from pagetide_spec.config import EngineConfig

CPU = torch.device("cpu")
Load = Callable[[str], LoadedModel]
Toy = types.SimpleNamespace


class CallRecorder:
    """Replays by calling again; `played` are the recordings by their number, in the order in which they were asked."""

    def __init__(self) -> None:
        self.count, self.played = 0, []

    def __call__(self, work: Work) -> Work:
        work()
        number = self.count
        self.count += 1

        def replay() -> None:
            self.played.append(number)
            work()

        return replay


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


@pytest.mark.parametrize(
    ("window", "contexts"),
    [
        pytest.param(512, [512], id="a short window"),
        pytest.param(5000, [5000], id="hardly longer than the short context"),
        pytest.param(40_960, [4096, 40_960], id="a long window"),
        pytest.param(131_072, [4096, 32_768, 131_072], id="a very long window"),
    ],
)
def test_contexts(window: int, contexts: list[int]) -> None:
    assert graph_contexts(window) == contexts


@pytest.mark.parametrize(
    ("rows", "context", "played"),
    [
        pytest.param(2, 8192, 0, id="the largest was recorded first, for the whole window before short contexts"),
        pytest.param(2, 4096, 1, id="a short context"),
        pytest.param(1, 4097, 2, id="one row"),
        pytest.param(1, 7, 3, id="one row of a short context"),
    ],
)
def test_the_smallest_recording_that_holds_a_batch_is_replayed(rows: int, context: int, played: int, toy: Toy) -> None:
    recorder = CallRecorder()
    limits = GraphLimits(2, 8192, 8, 9, 5)
    graphs = DecodeGraphs(lambda batch: torch.zeros(len(batch.context_lens), 5), limits, CPU, recorder)
    sequences = [toy.make_sequence([7] * context, list(range(1024))) for _ in range(rows)]
    batch = host_batch(Step(rows=[Row(s, context - 1, 1, samples=True) for s in sequences]), 8)
    assert graphs.run(batch).shape == (rows, 5)
    assert (recorder.count, recorder.played) == (4, [played])


def test_padding_belongs_to_nobody(toy: Toy) -> None:
    seen = []

    def forward(batch: object) -> torch.Tensor:
        seen.append(batch)
        return torch.zeros(len(batch.context_lens), 5)  # type: ignore[attr-defined]

    graphs = DecodeGraphs(forward, GraphLimits(4, 64, 8, 30, 5), CPU, CallRecorder())
    for lengths in ((19, 12, 9, 20), (17, 10, 3)):
        sequences = [toy.make_sequence(list(range(n)), [3 * i, 3 * i + 1, 3 * i + 2]) for i, n in enumerate(lengths)]
        graphs.run(host_batch(Step(rows=[Row(s, len(s.tokens) - 1, 1, samples=True) for s in sequences]), 8))
    batch = seen[-1]
    assert batch.input_ids.tolist() == [16, 9, 2, 0]
    assert batch.positions.tolist() == [16, 9, 2, 0]
    assert batch.slots.tolist() == [2 * 8, 4 * 8 + 1, 6 * 8 + 2, 30 * 8]
    assert batch.context_lens.tolist() == [17, 10, 3, 1]
    assert batch.block_tables[:, 0].tolist() == [0, 3, 6, 30]
    assert batch.query_starts.tolist() == [0, 1, 2, 3, 4]


@pytest.fixture
def pair(loaded_tiny: Load, toy: Toy) -> Callable[[str], tuple[Runner, Runner]]:
    """An eager runner and one that replays, both over NaN."""

    def make(kind: str) -> tuple[Runner, Runner]:
        eager, replaying = (toy.poisoned_runner(loaded_tiny(kind), 24, 8) for _ in range(2))
        replaying.record(6, 64, CallRecorder())
        for part in (part for cache in replaying.caches for part in cache):
            assert part[:24].isnan().all(), "recording has written into somebody's block"
        return eager, replaying

    return make


@pytest.mark.parametrize("kind", ["gemma3", "qwen2-sliding"])
@pytest.mark.parametrize("rows", [1, 3, 5, 6])
def test_a_replay_computes_and_stores_the_same(
    rows: int, kind: str, pair: Callable[[str], tuple[Runner, Runner]], toy: Toy
) -> None:
    _replay_like_eager_steps(*pair(kind), rows, toy)


def test_layers_with_merged_projections_are_replayed(
    loaded_tiny: Load, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGETIDE_KERNELS", "torch")
    plain = loaded_tiny("gemma3")
    merged = copy.deepcopy(plain)
    assert merge_projections(merged.network) == 3
    eager, replaying = (toy.poisoned_runner(loaded, 24, 8) for loaded in (plain, merged))
    replaying.record(6, 64, CallRecorder())
    _replay_like_eager_steps(eager, replaying, 3, toy)


def _replay_like_eager_steps(eager: Runner, replaying: Runner, rows: int, toy: Toy) -> None:
    """Assert that both runners compute the same logits and fill their caches alike."""
    prompts = [[20 + i + j for j in range(3 * i + 1)] for i in range(rows)]
    sequences = [toy.make_sequence(p, list(range(1 + 3 * i, 4 + 3 * i))) for i, p in enumerate(prompts)]
    prefill = Step(rows=[Row(s, 0, len(s.tokens), samples=True) for s in sequences])
    logits = [runner.execute(prefill) for runner in (eager, replaying)]
    toy.settle(prefill, logits[0])
    for _ in range(3):
        step = Step(rows=[Row(s, s.computed, 1, samples=True) for s in sequences])
        expected, got = eager.execute(step), replaying.execute(step)
        torch.testing.assert_close(got.written(), expected.written(), rtol=1e-4, atol=1e-4)
        toy.settle(step, expected)
    for one, other in zip(eager.caches, replaying.caches, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a[:24].isnan(), b[:24].isnan())
            torch.testing.assert_close(a[:24].nan_to_num(), b[:24].nan_to_num(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("replays", [False, True], ids=["eager", "replayed"])
def test_tokens_that_only_the_device_knows_are_taken_from_it(
    replays: bool, pair: Callable[[str], tuple[Runner, Runner]], toy: Toy
) -> None:
    runner = pair("qwen3")[replays]
    known = [toy.make_sequence([30 + i, 40, 50 + i], [2 * i]) for i in range(3)]
    prefill = Step(rows=[Row(s, 0, 3, samples=True) for s in known])
    runner.execute(prefill)
    tokens = [101, 102, 103]
    expected = _decoded(runner, known, tokens)
    unknown: list[Sequence] = [toy.make_sequence(s.tokens[:3], s.blocks) for s in known]
    device = runner.loaded.device
    device_tokens = DeviceTokens(
        torch.tensor([102, 5, 103, 101], device=device), {unknown[1]: 0, unknown[2]: 2, unknown[0]: 3}
    )
    for sequence in unknown:
        sequence.tokens.append(UNKNOWN_TOKEN)
    step = Step(rows=[Row(s, 3, 1, samples=True) for s in unknown])
    assert torch.equal(runner.execute(step, device_tokens).written(), expected)
    with pytest.raises(ValueError, match="neither known nor on the device"):
        runner.execute(step, DeviceTokens(torch.tensor([1]), {unknown[0]: 0}))


def _decoded(runner: Runner, sequences: list[Sequence], tokens: list[int]) -> torch.Tensor:
    for sequence, token in zip(sequences, tokens, strict=True):
        sequence.tokens.append(token)
    return runner.execute(Step(rows=[Row(s, 3, 1, samples=True) for s in sequences])).written().clone()


def test_only_decodes_that_are_all_wanted_fit(toy: Toy) -> None:
    limits = GraphLimits(2, 64, 8, 3, 5)
    graphs = DecodeGraphs(lambda batch: torch.zeros(len(batch.context_lens), 5), limits, CPU, CallRecorder())
    sequences = [toy.make_sequence([5, 6, 7], [i]) for i in range(3)]

    def fits(*rows: Row) -> bool:
        return graphs.fits(host_batch(Step(rows=list(rows)), 8))

    assert fits(*(Row(s, 2, 1, samples=True) for s in sequences[:2]))
    assert not fits(*(Row(s, 2, 1, samples=True) for s in sequences))
    assert not fits(Row(sequences[0], 1, 2, samples=True))
    assert not fits(Row(sequences[0], 0, 1, samples=False))
    assert not fits(Row(sequences[0], 2, 1, samples=True, siblings=(sequences[1],)))


# ---- at start


@pytest.mark.parametrize(
    ("left", "recordings", "taken"),
    [
        pytest.param([1000, 600], 1, 400, id="a single one"),
        pytest.param([1000, 600, 590, 585], 10, 400 + 9 * 10, id="the others take little more"),
        pytest.param([1000, 600, 620], 3, 400, id="somebody else gave memory back"),
    ],
)
def test_memory_of_all_recordings(left: list[int], recordings: int, taken: int) -> None:
    assert total_bytes(left, recordings) == taken


def test_two_sizes_tell_what_all_take(loaded_tiny: Load) -> None:
    recorder = CallRecorder()
    left = iter([5000, 3000, 2900])
    config = EngineConfig(block_size=8)
    # Sizes 1, 2, 4, 8, 16, 20; the window of 512 is short.
    assert recorded_bytes(config, loaded_tiny("llama"), 20, recorder, lambda: next(left)) == 2000 + 5 * 100
    assert recorder.count == 2


def test_a_network_that_waits_runs_eagerly(loaded_tiny: Load, caplog: pytest.LogCaptureFixture) -> None:
    def fails(work: Work) -> Work:
        raise RuntimeError("called a synchronizing CUDA operation")

    caplog.set_level(logging.WARNING)
    assert recorded_bytes(EngineConfig(), loaded_tiny("llama"), 4, fails, lambda: 0) is None
    assert "no CUDA graphs can be captured" in caplog.text
    assert "synchronizing" in caplog.text


@pytest.mark.parametrize(
    ("device", "kernels", "eager", "records"),
    [
        pytest.param("cuda", "triton", False, True, id="a GPU"),
        pytest.param("cuda", "triton", True, False, id="a GPU, enforce_eager"),
        pytest.param("cuda", "torch", False, False, id="torch's attention looks at lengths"),
        pytest.param("cpu", "cpp", False, False, id="a CPU"),
    ],
)
def test_who_records(device: str, kernels: str, eager: bool, records: bool) -> None:
    loaded = types.SimpleNamespace(device=torch.device(device), attention_name=f"paged-{kernels}")
    assert (recorder_for(EngineConfig(enforce_eager=eager), loaded) is not None) == records


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: CUDA graphs")
def test_cuda_graphs_answer_like_eager_steps(tiny_model: Callable[[str], object]) -> None:
    from pagetide_server import LLM, SamplingParams

    prompts = [[10 + i] * (3 + 5 * i) for i in range(5)]
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    found = []
    for eager in (True, False):
        with LLM(str(tiny_model("qwen3")), dtype="float32", max_num_seqs=8, enforce_eager=eager) as llm:
            found.append([r.outputs[0].token_ids for r in llm.generate(prompts, params)])
            assert (llm._core._runner._graphs is None) == eager
    assert found[0] == found[1]
