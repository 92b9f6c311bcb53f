"""Leave the rotation of queries and keys to the op that writes the cache, which then is one launch instead of a dozen.

An attention layer of transformers rotates its queries and keys by its module's `apply_rotary_pos_emb`, and hands them
to the attention interface. Here the layer gets a forward of the same code in which that function rotates nothing, but
lets cosines and sines go along with the keys; `attention.StepAttention` finds them there. Only where the function does
the usual thing, and only if every layer's keys arrive as they left it.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from .attention import AttentionCall, angles_of, with_angles

NAME = "apply_rotary_pos_emb"


@torch.inference_mode()
def defer_rotary(network: Any) -> int:
    """Change the attention layers of `network`; how many were changed: all of them or none."""
    layers = [m for m in network.modules() if isinstance(getattr(m, "layer_idx", None), int) and _is_known(m)]
    for layer in layers:
        layer.forward = types.MethodType(_without_rotation(_code_of(layer)), layer)
    probe = _Probe()
    ids = torch.zeros(1, 3, dtype=torch.long, device=next(network.parameters()).device)
    if layers:
        network.base_model(input_ids=ids, position_ids=ids, use_cache=False, paged=probe)
    if probe.attended == len(layers) == probe.with_angles:
        return len(layers)
    for layer in layers:
        del layer.forward
    return 0


def settle_frequencies(network: torch.nn.Module) -> None:
    """Keep frequencies as they are that transformers would choose again in every step, by the positions in it.

    "dynamic" ones change behind max_position_embeddings only, those of "longrope" behind the length of the first
    training, and no context reaches further (`loader.max_context_length`). transformers looks at the positions all the
    same: for "dynamic" ones the host would wait for the device, for "longrope" launch half a dozen kernels for nothing.
    """
    for module in network.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, str):
            module.rope_type = _settled(kind)  # type: ignore[assignment]
        elif isinstance(kind, dict):
            module.rope_type = {k: _settled(v) for k, v in kind.items()}  # type: ignore[assignment]


def _settled(kind: str) -> str:
    return "settled" if "dynamic" in kind or kind == "longrope" else kind


def _code_of(layer: torch.nn.Module) -> types.FunctionType:
    """The function below the decorators of its forward."""
    found: Any = inspect.unwrap(type(layer).forward)
    return found  # type: ignore[no-any-return]


def _is_known(layer: torch.nn.Module) -> bool:
    code = _code_of(layer)
    turn = getattr(code, "__globals__", {}).get(NAME)
    return turn is not None and NAME in code.__code__.co_names and "forward" not in vars(layer) and _is_usual(turn)


@functools.cache
def _is_usual(turn: Callable[..., Any]) -> bool:
    """Whether it rotates pairs (i, i + half) of whole heads by the angles' first half, which the second one repeats."""
    chance = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, heads, 3, 8, generator=chance) for heads in (2, 1))
    angles = torch.randn(1, 3, 4, generator=chance)
    cos, sin = (torch.cat((part, part), dim=-1) for part in (angles.cos(), angles.sin()))
    try:
        found = turn(query, key, cos, sin)
    except TypeError:
        return False
    return all(
        torch.allclose(got, torch.cat((left * c - right * s, right * c + left * s), dim=-1))
        for got, (left, right) in ((found[0], query.chunk(2, -1)), (found[1], key.chunk(2, -1)))
        for c, s in ((cos[..., :4], sin[..., :4]),)
    )


def _turn_later(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """In place of `apply_rotary_pos_emb`: cos and sin [1, T, head_dim] go along with the key."""
    return query, with_angles(key, cos, sin)


def _without_rotation(code: types.FunctionType) -> types.FunctionType:
    """The same function, in whose globals `apply_rotary_pos_emb` is `_turn_later`."""
    names = {**code.__globals__, NAME: _turn_later}
    made = types.FunctionType(code.__code__, names, code.__name__, code.__defaults__, code.__closure__)
    made.__kwdefaults__ = code.__kwdefaults__
    return made


class _Probe:
    """Answers attention calls with nothing, and counts those whose keys bring the angles of whole heads along."""

    def __init__(self) -> None:
        self.attended = self.with_angles = 0

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See `attention.Attends`."""
        angles, (tokens, _, size) = angles_of(call.others), call.key.shape
        self.attended += 1
        self.with_angles += angles is not None and angles[0].shape == (tokens, size // 2)
        return call.query.new_zeros(*call.query.shape[:2], call.value.shape[2])
