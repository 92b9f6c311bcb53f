"""Query, key and value as one matrix product: which layers have it, the same answers, and what memory it takes."""

from __future__ import annotations

import copy
import gc
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from pagetide_server.model import fused, projections
from pagetide_server.model.loader import LoadedModel
from pagetide_server.model.merging import QUERY_KEY_VALUE
from pagetide_server.model.projections import MergedProjections, merge_projections
from pagetide_server.model.rotary import defer_rotary

# What comes with one matrix for the three.
MERGED_THEMSELVES = {"phi3", "gpt-neox", "gpt2"}
PROMPTS = [[20 + i, *range(30, 30 + 7 * i), 200 - i] for i in range(4)]

Load = Callable[[str], LoadedModel]


@pytest.fixture(autouse=True)
def plain_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers of transformers, which a GPU starts from; C++ ops for the CPU come with layers of their own."""
    monkeypatch.setenv("PAGETIDE_KERNELS", "torch")


def merged_parts(network: torch.nn.Module) -> list[MergedProjections]:
    return [m for m in network.modules() if isinstance(m, MergedProjections)]


@pytest.mark.parametrize("deferred", [False, True], ids=["rotation in the layer", "rotation left to the cache's op"])
def test_greedy_equals_generate(
    deferred: bool, tiny_kind: str, tiny_model: Callable[[str], Path], loaded_tiny: Load, toy: types.SimpleNamespace
) -> None:
    loaded = copy.deepcopy(loaded_tiny(tiny_kind))
    assert merge_projections(loaded.network) == (0 if tiny_kind in MERGED_THEMSELVES else 3)
    if deferred:
        defer_rotary(loaded.network)
    assert toy.answers(loaded, PROMPTS, 8, chunk=11) == toy.expected_answers(tiny_model(tiny_kind), PROMPTS, 8)
    for merged in merged_parts(loaded.network):
        assert (merged._hidden, merged._waiting) == (None, {}), "something of the last step was kept"


def test_a_step_computes_one_product_for_the_three(
    tiny_kind: str, loaded_tiny: Load, toy: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = copy.deepcopy(loaded_tiny(tiny_kind))
    plain, calls = torch.nn.functional.linear, []

    def linear(*args: Any) -> torch.Tensor:
        calls.append(args)
        return plain(*args)

    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    toy.answers(loaded, PROMPTS[:1], 1)
    before = len(calls)
    layers = merge_projections(loaded.network)
    calls.clear()
    toy.answers(loaded, PROMPTS[:1], 1)
    assert before - len(calls) == 2 * layers


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_weights_are_held_once(kind: str, loaded_tiny: Load) -> None:
    network = copy.deepcopy(loaded_tiny(kind).network)
    attention = network.model.layers[1].self_attn
    parts = QUERY_KEY_VALUE.separate(attention)
    weights = torch.cat([p.weight for p in parts])
    biases = torch.cat([p.bias for p in parts]) if kind == "qwen2" else None
    count = sum(p.numel() for p in network.parameters())
    merge_projections(network)
    merged = attention.q_proj.merged
    assert merged is attention.k_proj.merged is attention.v_proj.merged
    assert torch.equal(merged.weight, weights)
    assert (merged.bias is None) == (biases is None)
    assert biases is None or torch.equal(merged.bias, biases)
    assert sum(p.numel() for p in network.parameters()) == count
    assert sum(p.numel() for part in parts for p in part.parameters()) == 0


@pytest.mark.parametrize(
    ("module", "change"),
    [
        pytest.param(projections, merge_projections, id="query, key and value"),
        pytest.param(fused, fused.fuse, id="gate and up"),
    ],
)
def test_at_most_one_layer_lies_there_twice(
    module: Any, change: Callable[[Any], object], loaded_tiny: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = copy.deepcopy(loaded_tiny("qwen2").network)
    held = list(network.modules())
    plain, seen = module.merge, []

    def bytes_held() -> int:
        # Old layers too, of which whoever walks through a network may have a list.
        parameters = (p for m in (*held, *network.modules()) for p in m.parameters(recurse=False))
        return sum({s.data_ptr(): s.nbytes() for s in (p.untyped_storage() for p in parameters)}.values())

    def merge(parts: list[Any]) -> Any:
        seen.append(bytes_held())
        return plain(parts)

    before = bytes_held()
    monkeypatch.setattr(module, "merge", merge)
    change(network)
    assert seen == [before] * 3
    assert bytes_held() == before


@pytest.fixture
def attention() -> Any:
    """An attention layer of odd sizes, without a forward."""
    layer: Any = torch.nn.Module()
    layer.layer_idx = 0
    torch.manual_seed(2)
    for name, size in zip(QUERY_KEY_VALUE.parts, (10, 3, 5), strict=True):
        setattr(layer, name, torch.nn.Linear(7, size))
    return layer


@torch.inference_mode()
def test_another_input_gets_its_own_product(attention: Any) -> None:
    plain = copy.deepcopy(attention)
    assert merge_projections(attention) == 1
    one, other = torch.randn(2, 1, 4, 7)
    # The same numbers in another tensor are another input.
    for calls in (
        [("q_proj", one), ("k_proj", one), ("v_proj", one)],
        [("q_proj", one), ("k_proj", other), ("v_proj", one)],
        [("v_proj", one), ("k_proj", one), ("k_proj", one), ("q_proj", one), ("v_proj", one)],
        [("q_proj", one), ("q_proj", other), ("v_proj", other), ("k_proj", one.clone()), ("k_proj", other)],
    ):
        for name, hidden in calls:
            torch.testing.assert_close(getattr(attention, name)(hidden), getattr(plain, name)(hidden))


@pytest.mark.parametrize(
    "last",
    [
        pytest.param(lambda layer, hidden: layer.v_proj(hidden), id="all have taken theirs"),
        pytest.param(lambda layer, hidden: layer.v_proj(hidden.clone()), id="the last has another input"),
    ],
)
@torch.inference_mode()
def test_nothing_is_kept_behind_the_last_call(last: Callable[[Any, torch.Tensor], object], attention: Any) -> None:
    merge_projections(attention)
    hidden = torch.randn(1, 4, 7)
    product = attention.q_proj(hidden)
    gone = [weakref.ref(hidden), weakref.ref(product)]
    attention.k_proj(hidden)
    last(attention, hidden)
    del hidden, product
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert not attention.q_proj.merged._waiting


class OwnNorm(torch.nn.LayerNorm):
    """Stands for a model's own code."""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("k_proj", NonDynamicallyQuantizableLinear(7, 3), id="another type of layer"),
        pytest.param("k_proj", torch.nn.Linear(7, 3, bias=False), id="not all have a bias"),
        pytest.param("v_proj", torch.nn.Linear(6, 5), id="another input size"),
        pytest.param("v_proj", None, id="no values of its own"),
        pytest.param("k_norm", OwnNorm(3), id="a part is of the model's own code"),
        pytest.param("layer_idx", None, id="no attention layer of a decoder"),
    ],
)
def test_what_cannot_be_merged_stays(name: str, value: object, attention: Any) -> None:
    setattr(attention, name, value)
    before = [getattr(attention, part) for part in QUERY_KEY_VALUE.parts]
    assert merge_projections(attention) == 0
    assert [getattr(attention, part) for part in QUERY_KEY_VALUE.parts] == before


def test_a_second_call_changes_nothing(loaded_tiny: Load) -> None:
    network = copy.deepcopy(loaded_tiny("llama").network)
    assert [merge_projections(network), merge_projections(network)] == [3, 0]
