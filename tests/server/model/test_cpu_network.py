"""A network whose layers were all swapped, by itself and by transformers' forward pass."""

from __future__ import annotations

import dataclasses
import random
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pagetide_server.engine.sequence import Row, Step
from pagetide_server.model.cpu_network import cpu_network
from pagetide_server.model.loader import LoadedModel
from pagetide_server.model.rotary_table import RotaryTable

pytestmark = pytest.mark.usefixtures("needs_compiler")

Load = Callable[..., LoadedModel]
Toy = types.SimpleNamespace
KNOWN = ["llama", "qwen2", "qwen2-sliding", "qwen3", "mistral", "gemma2", "gemma3", "phi3"]


def prompt_logits(loaded: LoadedModel, toy: Toy) -> torch.Tensor:
    """Of all positions of a prompt in two pieces: [tokens, vocab]."""
    chance = random.Random(8)
    prompt = [chance.randrange(8, 380) for _ in range(45)]
    runner = toy.poisoned_runner(loaded, 8, 16)
    sequence = toy.make_sequence(prompt, [3, 1, 5], prompt_logprobs=1)
    pieces = [Row(sequence, 0, 30, samples=False), Row(sequence, 30, 15, samples=True)]
    return torch.cat([runner.execute(Step([piece])).prompt[0] for piece in pieces])


@pytest.mark.parametrize("kind", KNOWN)
def test_both_ways_give_the_same_logits(kind: str, loaded_tiny: Load, toy: Toy) -> None:
    loaded = loaded_tiny(kind)
    assert loaded.cpu is not None
    by_transformers = prompt_logits(dataclasses.replace(loaded, cpu=None), toy)
    torch.testing.assert_close(prompt_logits(loaded, toy), by_transformers, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["olmo2", "granite", "mixtral", "gpt-neox"])
def test_a_network_of_other_layers_is_left_to_transformers(kind: str, loaded_tiny: Load) -> None:
    assert loaded_tiny(kind).cpu is None


def test_a_window_may_be_shorter_than_the_trial(loaded_tiny: Load) -> None:
    assert cpu_network(loaded_tiny("llama").network, 4) is not None


class _Scaled(torch.nn.Module):
    """Doubles what another module gives."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **others: Any) -> torch.Tensor:
        return 2 * self.module(*args, **others)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        pytest.param("norm", lambda base: _Scaled(base.norm), id="another norm"),
        pytest.param("layers", lambda base: torch.nn.ModuleList(reversed(base.layers)), id="another order of layers"),
        pytest.param(
            "layers", lambda base: torch.nn.ModuleList([*base.layers, _Scaled(base.layers[0])]), id="one more"
        ),
        pytest.param("forward", lambda base: _shifted(base), id="other positions"),
        pytest.param("forward", lambda base: _flipping(base), id="another embedding"),
    ],
)
def test_a_network_that_computes_something_else_around_its_layers_is_left_to_transformers(
    name: str, changed: Callable[[Any], Any], loaded_tiny: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = loaded_tiny("llama").network
    assert cpu_network(network, 512) is not None
    if name == "forward":
        monkeypatch.setattr(network.base_model, name, changed(network.base_model))
    else:
        monkeypatch.setitem(network.base_model._modules, name, changed(network.base_model))
        network.base_model.config.num_hidden_layers = len(network.base_model.layers)
    try:
        assert cpu_network(network, 512) is None
    finally:
        network.base_model.config.num_hidden_layers = 3


def _flipping(base: Any) -> Callable[..., Any]:
    """Gives the layers the embedding of the last token first, and undoes that behind them: the logits are equal."""
    forward = base.forward

    def flipped(**asked: Any) -> Any:
        hooks = [
            base.layers[0].register_forward_pre_hook(lambda layer, given: (given[0].flip(1), *given[1:])),
            base.layers[-1].register_forward_hook(lambda layer, given, out: out.flip(1)),
        ]
        try:
            return forward(**asked)
        finally:
            for hook in hooks:
                hook.remove()

    return flipped


def test_a_network_that_computes_something_else_behind_its_logits_matrix_is_left_to_transformers(
    loaded_tiny: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = loaded_tiny("llama").network
    forward = network.forward

    def scaled(**asked: Any) -> Any:
        found = forward(**asked)
        return types.SimpleNamespace(logits=2 * found.logits)

    monkeypatch.setattr(network, "forward", scaled)
    assert cpu_network(network, 512) is None


def _shifted(base: Any) -> Callable[..., Any]:
    forward = base.forward
    return lambda position_ids, **others: forward(position_ids=position_ids + 1, **others)


def test_a_table_is_filled_in_its_place_a_piece_at_a_time() -> None:
    asked: list[torch.Tensor] = []

    def rotary(like: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(position_ids[0])
        angle = position_ids[..., None] * torch.ones(4)
        return angle.cos(), angle.sin()

    table = RotaryTable(rotary, [None], limit=100_000)
    place = table._table.data_ptr()
    for needed in (3, 5000, 5120, 5121):
        table.rows(torch.tensor([needed - 1]), needed)
    assert [(int(positions[0]), len(positions)) for positions in asked[1:]] == [(0, 1024), (1024, 4096), (5120, 1024)]
    assert table._table.data_ptr() == place


def test_angles_are_asked_for_once_a_position_and_never_beyond_the_window() -> None:
    asked: list[list[int]] = []

    def rotary(like: torch.Tensor, position_ids: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(position_ids[0].tolist())
        angle = position_ids[..., None] * torch.tensor([1.0, 0.5] * 2) * (2.0 if kind == "wide" else 1.0)
        return angle.cos(), angle.sin()

    table = RotaryTable(rotary, ["wide", "narrow", "wide"], limit=1500)
    rows = table.rows(torch.tensor([7, 3]), 8)
    table.rows(torch.tensor([1023]), 1024)
    later = table.rows(torch.tensor([1030]), 1031)
    assert [positions[-1] for positions in asked] == [0, 0, 1023, 1023, 1499, 1499]
    assert asked[4][0] == 1024
    for row, position in ((rows[0], 7), (rows[1], 3), (later[0], 1030)):
        for index, factor in enumerate((2.0, 1.0, 2.0)):
            cos, sin = table.of_layer(row[None], index)
            torch.testing.assert_close(cos[0], (torch.tensor([1.0, 0.5]) * factor * position).cos())
            torch.testing.assert_close(sin[0], (torch.tensor([1.0, 0.5]) * factor * position).sin())
