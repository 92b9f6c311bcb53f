"""Layers that leave rotation to the op which writes the cache: which do, and that answers stay the same."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pagetide_server.model.attention import forward
from pagetide_server.model.loader import LoadedModel
from pagetide_server.model.rotary import _is_usual, defer_rotary

# What turns its heads otherwise, parts of them or pairs (2 i, 2 i + 1), or does not turn them.
UNUSUAL = {"gpt-neox", "stablelm", "cohere2", "gpt2", "biogpt"}
PROMPTS = [[20 + i, *range(30, 30 + 7 * i), 200 - i] for i in range(4)]

Load = Callable[[str], LoadedModel]


@pytest.fixture(autouse=True)
def plain_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers of transformers, which a GPU starts from; C++ ops for the CPU come with layers of their own."""
    monkeypatch.setenv("PAGETIDE_KERNELS", "torch")


def test_greedy_equals_generate(
    tiny_kind: str, tiny_model: Callable[[str], Path], loaded_tiny: Load, toy: types.SimpleNamespace
) -> None:
    loaded = copy.deepcopy(loaded_tiny(tiny_kind))
    assert defer_rotary(loaded.network) == (0 if tiny_kind in UNUSUAL else 3)
    assert toy.answers(loaded, PROMPTS, 8, chunk=11) == toy.expected_answers(tiny_model(tiny_kind), PROMPTS, 8)


def test_a_second_call_changes_nothing(loaded_tiny: Load) -> None:
    network = copy.deepcopy(loaded_tiny("llama").network)
    assert [defer_rotary(network), defer_rotary(network)] == [3, 0]
    assert "forward" in vars(network.model.layers[0].self_attn)


def apply_rotary_pos_emb(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return _turned(query, cos, sin), _turned(key, cos, sin)


def scaling_its_keys(layer: Any, hidden_states: torch.Tensor, position_embeddings: Any, paged: Any, **_: Any) -> Any:
    """A forward of an attention layer that does something to its keys once they are turned."""
    shape = (*hidden_states.shape[:-1], -1, layer.head_dim)
    parts = (part(hidden_states).view(shape).transpose(1, 2) for part in (layer.q_proj, layer.k_proj, layer.v_proj))
    query, key, value = parts
    query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
    out, _ = forward(layer, query, key * 2, value, None, scaling=layer.scaling, paged=paged)
    return layer.o_proj(out.reshape(*hidden_states.shape[:-1], -1)), None


def not_saying_how_it_turns(layer: Any, hidden_states: torch.Tensor, **others: Any) -> Any:
    return scaling_its_keys(layer, hidden_states, **others)


@pytest.mark.parametrize("changed", [scaling_its_keys, not_saying_how_it_turns])
def test_layers_whose_keys_do_not_arrive_as_they_were_turned_stay(
    changed: Callable[..., Any], loaded_tiny: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = copy.deepcopy(loaded_tiny("llama").network)
    layer = network.model.layers[0].self_attn
    monkeypatch.setattr(type(layer), "forward", changed)
    assert defer_rotary(network) == 0
    assert "forward" not in vars(layer)


@pytest.mark.parametrize(
    ("turn", "usual"),
    [
        pytest.param(lambda q, k, cos, sin: (_turned(q, cos, sin), _turned(k, cos, sin)), True, id="halves"),
        pytest.param(lambda q, k, cos, sin: (_turned(q, cos, -sin), _turned(k, cos, -sin)), False, id="backwards"),
        pytest.param(lambda q, k, cos, sin: (_turned(q, cos, sin), k), False, id="the query only"),
        pytest.param(lambda q, k, cos, sin, positions: (q, k), False, id="other arguments"),
    ],
)
def test_the_usual_rotation_is_known_by_what_it_does(turn: Callable[..., Any], usual: bool) -> None:
    assert _is_usual(turn) == usual


def _turned(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = heads.chunk(2, -1)
    return heads * cos[:, None] + torch.cat((-right, left), -1) * sin[:, None]
