"""The model on the Triton ops, interpreted where there is no GPU: layers that are swapped, and greedy answers."""

from __future__ import annotations

import copy
import logging
import random
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pagetide_server.model.fused import fuse
from pagetide_server.model.loader import LoadedModel
from pagetide_server.model.residual import join_residuals
from pagetide_server.model.swapping import use_gpu_ops

pytest.importorskip("triton")

Load = Callable[[str], LoadedModel]


@pytest.fixture
def plain(loaded_tiny: Callable[..., LoadedModel], monkeypatch: pytest.MonkeyPatch) -> Load:
    """`plain(name)`: a float32 model with the layers of transformers, on a GPU where there is one, for Triton's ops."""

    def get(name: str) -> LoadedModel:
        monkeypatch.setenv("PAGETIDE_KERNELS", "torch")
        loaded = copy.deepcopy(loaded_tiny(name, dtype="float32"))
        monkeypatch.setenv("PAGETIDE_KERNELS", "triton")
        return loaded

    return get


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
def test_swapped_layers_compute_the_same(kind: str, swapped: list[str], plain: Load) -> None:
    loaded = plain(kind)
    network = loaded.network.base_model
    expected: dict[str, torch.Tensor] = {}
    inputs: dict[str, torch.Tensor] = {}
    names = [n for n, m in network.named_modules() if type(m).__name__ in swapped]
    torch.manual_seed(4)
    for name in names:
        module = network.get_submodule(name)
        if hasattr(module, "weight"):
            module.weight.copy_(torch.randn_like(module.weight))
        size = module.weight.shape[0] if hasattr(module, "weight") else module.gate_proj.in_features
        inputs[name] = torch.randn(1, 3, size, device=loaded.device)
        expected[name] = module(inputs[name])
    assert fuse(network) == swapped
    for name in names:
        torch.testing.assert_close(network.get_submodule(name)(inputs[name]), expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "joined"),
    [
        pytest.param("llama", 3, id="llama"),
        pytest.param("qwen2", 3, id="qwen2"),
        pytest.param("qwen3", 3, id="qwen3"),
        pytest.param("mistral", 3, id="mistral"),
        pytest.param("gemma2", 0, id="gemma2: what is added is normed first"),
    ],
)
def test_greedy_equals_generate(
    kind: str,
    joined: int,
    tiny_model: Callable[[str], Path],
    plain: Load,
    toy: types.SimpleNamespace,
    caplog: pytest.LogCaptureFixture,
) -> None:
    loaded = plain(kind)
    caplog.set_level(logging.INFO)
    use_gpu_ops(loaded.network)
    assert (
        f"one product: 3; whose outputs are added by the norms behind: {joined} of attention, {joined}" in caplog.text
    )
    assert "rotation to the cache's op: 3" in caplog.text
    chance = random.Random(3)
    prompts = [[chance.randrange(8, 380) for _ in range(n)] for n in (5, 1, 33)]
    expected = toy.expected_answers(tiny_model(kind), prompts, 6)
    assert toy.answers(loaded, prompts, 6, block_size=16, chunk=20) == expected


class Additions(TorchDispatchMode):
    """Counts torch's own additions of whole residual streams."""

    count = 0

    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.count += name.startswith("add") and getattr(args[0], "shape", ())[-1:] == (64,)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("foreign", "left"),
    [
        pytest.param(None, 0, id="none"),
        pytest.param("norm", 3, id="one a layer, where the last norm is not ours"),
        pytest.param("layers.1", 4, id="one a layer, and that of attention, where a layer is of another kind"),
    ],
)
def test_additions_that_are_left_to_torch(
    foreign: str | None, left: int, plain: Load, toy: types.SimpleNamespace
) -> None:
    loaded = plain("llama")
    fuse(loaded.network)
    if foreign is not None:
        module = loaded.network.model.get_submodule(foreign)
        module.__class__ = type("Another", (type(module),), {"__module__": "transformers.another"})
    join_residuals(loaded.network)
    with Additions() as additions:
        toy.answers(loaded, [[5, 6, 7]], 1)
    assert additions.count == left
