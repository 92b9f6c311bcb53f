"""The model on the Triton ops, interpreted where there is no GPU: layers that are swapped, and greedy answers."""

from __future__ import annotations

import copy
import logging
import random
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pagetide_server.model.fused import fuse
from pagetide_server.model.loader import LoadedModel, _use_fused_ops

pytest.importorskip("triton")

Load = Callable[[str], LoadedModel]


@pytest.fixture(autouse=True)
def triton_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGETIDE_KERNELS", "triton")


@pytest.mark.parametrize(
    ("kind", "swapped"),
    [
        pytest.param("llama", ["LlamaMLP", "LlamaRMSNorm"], id="llama"),
        pytest.param("qwen3", ["Qwen3MLP", "Qwen3RMSNorm"], id="qwen3: norms of heads too"),
        pytest.param("gemma3", ["Gemma3MLP", "Gemma3RMSNorm"], id="gemma3: 1 + weight, gelu"),
        pytest.param("olmo2", ["Olmo2MLP", "Olmo2RMSNorm"], id="olmo2"),
        pytest.param("cohere2", ["Cohere2MLP"], id="cohere2: norms of another kind stay"),
        pytest.param("stablelm", ["StableLmMLP"], id="stablelm: norms of another kind stay"),
        pytest.param("mixtral", ["MixtralRMSNorm"], id="mixtral: experts stay"),
        pytest.param("gpt-neox", [], id="gpt-neox: nothing is known"),
    ],
)
@torch.inference_mode()
def test_swapped_layers_compute_the_same(kind: str, swapped: list[str], loaded_tiny: Load) -> None:
    network = copy.deepcopy(loaded_tiny(kind).network).base_model
    expected: dict[str, torch.Tensor] = {}
    inputs: dict[str, torch.Tensor] = {}
    names = [n for n, m in network.named_modules() if type(m).__name__ in swapped]
    torch.manual_seed(4)
    for name in names:
        module = network.get_submodule(name)
        if hasattr(module, "weight"):
            module.weight.copy_(torch.randn_like(module.weight))
        size = module.weight.shape[0] if hasattr(module, "weight") else module.gate_proj.in_features
        inputs[name] = torch.randn(1, 3, size)
        expected[name] = module(inputs[name])
    assert fuse(network) == swapped
    for name in names:
        torch.testing.assert_close(network.get_submodule(name)(inputs[name]), expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "qwen3"])
def test_greedy_equals_generate(
    kind: str,
    tiny_model: Callable[[str], Path],
    loaded_tiny: Load,
    toy: types.SimpleNamespace,
    caplog: pytest.LogCaptureFixture,
) -> None:
    loaded = copy.deepcopy(loaded_tiny(kind))
    caplog.set_level(logging.INFO)
    _use_fused_ops(loaded.network)
    joined = 0 if kind == "gemma2" else 3
    assert (
        f"one product: 3; that norm and add at once: {joined}; that leave rotation to the cache's op: 3" in caplog.text
    )
    chance = random.Random(3)
    prompts = [[chance.randrange(8, 380) for _ in range(n)] for n in (5, 1, 33)]
    expected = toy.expected_answers(tiny_model(kind), prompts, 6)
    assert toy.answers(loaded, prompts, 6, block_size=16, chunk=20) == expected
