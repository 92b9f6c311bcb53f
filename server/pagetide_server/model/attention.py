"""Our paged attention as an implementation of transformers' attention interface.

A network loaded with `attn_implementation=ATTENTION_NAME` calls `forward` in every attention layer. What the batch
looks like comes with the call: the runner passes a `StepAttention` to the network as the keyword `paged`, and the
network hands unknown keywords down to its layers.

No mask function is registered under the name, on purpose: transformers then builds no mask, and does not look for
packed sequences in the positions either (which on a GPU would wait for the device).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

from pagetide_kernels.attention_plan import Plan, make_plan
from pagetide_kernels.caches import Caches
from pagetide_kernels.paged_attention import paged_attention, uses_plan
from pagetide_kernels.reshape_and_cache import reshape_and_cache
from pagetide_kernels.rotate_and_cache import rotate_and_cache

from .batch import Batch

ATTENTION_NAME = "pagetide"

# Keywords that networks hand to attention and that change nothing in inference without masks and padding.
HARMLESS = frozenset(
    {
        "cache",
        "cache_position",
        "dropout",
        "is_causal",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "past_key_values",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)


# The attribute of keys that are yet to be rotated, and the keyword that brings it to `Attends.attend`.
_ANGLES = "pagetide_angles"
Angles = tuple[torch.Tensor, torch.Tensor]


def with_angles(key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`key` [1, kv_heads, T, head_dim], which is to be rotated, with it and the query, by cos and sin [1, T, head_dim].

    Of both the second half repeats the first.
    """
    setattr(key, _ANGLES, (cos[0, :, : cos.shape[2] // 2], sin[0, :, : sin.shape[2] // 2]))
    return key


def angles_of(others: dict[str, Any]) -> Angles | None:
    """cos and sin [T, head_dim / 2] that came with the key to `Attends.attend`; None: it is rotated already."""
    return others.get(_ANGLES)


class PagedKeywordLost(Exception):
    """A network does not hand unknown keywords down to its attention layers; `relay` helps."""


class AttentionCall(NamedTuple):
    """What a layer asks for.

    query is [T, heads, head_dim], key and value are [T, kv_heads, ...]; `others` is what else transformers hands on.
    """

    layer: torch.nn.Module
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scale: float
    sliding_window: int | None
    soft_cap: float | None
    others: dict[str, Any]


class Attends(Protocol):
    """What answers the attention calls of one forward pass."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """[T, heads, size of a value]"""
        ...


def register() -> None:
    """Make the implementation known to transformers; calling it again changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, forward)


def forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    *,
    paged: Attends | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer, as transformers calls it: [1, heads, T, head_dim] in, [1, T, heads, head_dim] out.

    Raises:
        PagedKeywordLost: the keyword `paged` did not get here.
    """
    if paged is None:
        raise PagedKeywordLost(type(module).__name__)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if attention_mask is not None:
        others["attention_mask"] = attention_mask
    if (angles := getattr(key, _ANGLES, None)) is not None:
        others[_ANGLES] = angles
    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
    call = AttentionCall(module, q, k, v, scale, sliding_window, softcap, others)
    return paged.attend(call)[None], None


class StepAttention:
    """Attention of one step: writes the new keys and values into the cache, then reads it through the block tables."""

    def __init__(self, batch: Batch, caches: Caches) -> None:
        self.batch, self.caches = batch, caches
        # Layers of equal window and cache shape share a plan.
        self._plans: dict[tuple[int | None, torch.Size], Plan] = {}
        self._uses_plan = uses_plan(batch.slots.device)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """See `Attends`; the layer's `layer_idx` says which cache is its own. Changes that cache."""
        batch, query = self.batch, call.query
        key_cache, value_cache = self.caches[call.layer.layer_idx]  # type: ignore[call-overload]
        kept = key_cache.dtype
        # On a CPU the cache may be narrower than what the layers compute in.
        if (angles := angles_of(call.others)) is None:
            reshape_and_cache(call.key.to(kept), call.value.to(kept), key_cache, value_cache, batch.slots)
        else:
            query = rotate_and_cache(query, call.key, call.value, *angles, key_cache, value_cache, batch.slots)
        return paged_attention(
            query,
            key_cache,
            value_cache,
            batch.block_tables,
            batch.context_lens,
            batch.query_starts,
            batch.max_query_len,
            batch.max_context_len,
            call.scale,
            call.sliding_window,
            call.soft_cap,
            self._plan(call.sliding_window, key_cache.shape),
        )

    def _plan(self, window: int | None, shape: torch.Size) -> Plan | None:
        if not self._uses_plan:
            return None
        known = self._plans.get((window, shape))
        if known is None:
            batch = self.batch
            known = make_plan(batch.block_tables, batch.context_lens, batch.query_starts, shape, window)
            self._plans[window, shape] = known
        return known


def relay(network: torch.nn.Module) -> None:
    """Bring the keyword `paged` to the attention layers of a network whose decoder layers drop it.

    Adds hooks to this one network: its forward pass leaves the keyword with them, each attention layer takes it up.
    """
    held: dict[str, Attends] = {}

    def take(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        held["paged"] = kwargs["paged"]

    def give(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, **held}

    def drop(module: torch.nn.Module, args: Any, output: Any) -> None:
        held.clear()

    outermost = {network, getattr(network, str(network.base_model_prefix), network)}
    for module in outermost:
        module.register_forward_pre_hook(take, with_kwargs=True)
    network.register_forward_hook(drop, always_call=True)
    for module in network.modules():
        if module not in outermost and isinstance(getattr(module, "layer_idx", None), int):
            module.register_forward_pre_hook(give, with_kwargs=True)
