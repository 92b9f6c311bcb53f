"""Sampling that is begun and waited for later: the same tokens, by torch's ops and by the Triton kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pagetide_kernels import dispatch
from pagetide_server.engine.sampling.launched import Choosing, Chosen
from pagetide_server.engine.sampling.sampler import Sampler
from pagetide_server.engine.sequence import UNKNOWN_TOKEN, Sequence
from pagetide_server.wire.messages import Structure

VOCABULARY = 203
MakeSequence = Callable[..., Sequence]
PLAIN: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"seed": 7},
    {"seed": 8, "temperature": 0.3},
    {"seed": 9, "top_k": 5},
    {"seed": 10, "top_p": 0.8},
    {"seed": 11, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"seed": 12, "top_k": -1, "min_p": 0.1},
    {"top_k": 1},
    {"ignore_eos": True, "stop_token_ids": (5,), "max_tokens": 3},
]


def kernels(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name == "triton":
        pytest.importorskip("triton")
    monkeypatch.setattr(dispatch, "_choose", lambda device_type, wanted: dispatch.Choice(name, "a test"))


@pytest.fixture(params=["torch", "triton"])
def sampler(request: Any, monkeypatch: pytest.MonkeyPatch) -> Sampler:
    if request.param == "triton" and torch.cuda.is_available():
        pytest.skip("the CPU's kernels are interpreted only where there is no GPU")
    kernels(monkeypatch, request.param)
    return Sampler(VOCABULARY, "cpu", seed=1)


def random_logits(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.mark.parametrize("which", [slice(None), slice(0, 1), slice(1, 6)], ids=["all kinds", "greedy", "drawn"])
def test_what_is_launched_is_what_is_sampled(sampler: Sampler, make: MakeSequence, which: slice) -> None:
    for turn in range(3):
        sequences = [make(answer=[3] * turn, order=i, **params) for i, params in enumerate(PLAIN)][which]
        logits = random_logits(len(sequences), turn)
        launched = sampler.launch(logits.clone(), sequences)
        expected = sampler.sample(logits.clone(), sequences)
        assert launched is not None
        assert launched.wait() == expected
        assert launched.token_ids.tolist() == expected.token_ids


def test_the_kernel_draws_what_torch_draws(make: MakeSequence, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name in ("torch", "triton"):
        kernels(monkeypatch, name)
        sampler = Sampler(VOCABULARY, "cpu", seed=1)
        rows = [[make(answer=[3] * n, order=i, **p) for i, p in enumerate(PLAIN)] for n in range(3)]
        found.append([sampler.sample(random_logits(len(PLAIN), n), row).token_ids for n, row in enumerate(rows)])
    assert found[0] == found[1]


def test_a_token_that_is_not_known_counts_like_any_other(sampler: Sampler, make: MakeSequence) -> None:
    known, unknown = (make(answer=[3, token], order=4, seed=6) for token in (9, UNKNOWN_TOKEN))
    logits = random_logits(1, 5)
    first, second = (sampler.launch(logits.clone(), [s]) for s in (known, unknown))
    assert first is not None
    assert second is not None
    assert first.wait() == second.wait()


@pytest.mark.parametrize(
    "params",
    [
        pytest.param({"logprobs": 0}, id="log probabilities"),
        pytest.param({"structure": Structure(kind="regex", value="a")}, id="a structure"),
        pytest.param({"repetition_penalty": 1.1}, id="repetition penalty"),
        pytest.param({"presence_penalty": 0.5}, id="presence penalty"),
        pytest.param({"logit_bias": {5: 1.0}}, id="logit_bias"),
        pytest.param({"bad_words_token_ids": ((4, 5),)}, id="bad words"),
        pytest.param({"allowed_token_ids": (4, 5)}, id="allowed tokens"),
        pytest.param({"min_tokens": 2}, id="min_tokens"),
    ],
)
def test_what_the_host_must_look_at_is_not_launched(
    sampler: Sampler, make: MakeSequence, params: dict[str, Any]
) -> None:
    assert sampler.launch(random_logits(2, 0), [make(), make(**params)]) is None


def test_rows_that_are_not_finite_are_told_and_their_tokens_stay_in_the_vocabulary(
    sampler: Sampler, make: MakeSequence
) -> None:
    logits = random_logits(6, 3)
    for row, value in ((0, float("nan")), (2, float("inf")), (4, float("-inf"))):
        logits[row] = value
    launched = sampler.launch(logits, [make(temperature=t, seed=1) for t in (0.0, 0.0, 1.0, 1.0, 1.0, 1.0)])
    assert launched is not None
    sampled = launched.wait()
    assert set(sampled.errors) == {0, 2, 4}
    assert all(0 <= token < VOCABULARY for token in launched.token_ids.tolist())


def test_each_device_has_its_way(make: MakeSequence, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind in (("torch", Chosen), ("triton", Choosing)):
        kernels(monkeypatch, name)
        assert isinstance(Sampler(VOCABULARY, "cpu").launch(random_logits(1, 0), [make(temperature=0.0)]), kind)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: pinned memory and events")
def test_nothing_waits_on_a_gpu(make: MakeSequence) -> None:
    sampler, sequences = Sampler(VOCABULARY, "cuda", seed=1), [make(order=i, **p) for i, p in enumerate(PLAIN)]
    logits = random_logits(len(PLAIN), 0).cuda()
    sampler.launch(logits.clone(), sequences)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        launched = sampler.launch(logits.clone(), sequences)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert launched is not None
    assert launched.wait() == sampler.sample(logits, sequences)
