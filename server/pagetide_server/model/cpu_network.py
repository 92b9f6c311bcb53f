"""A network whose decoder layers were all swapped, run without transformers' own forward pass.

That pass asks for masks, rotary angles and hooks on every step, which takes a small model as long as half its layers.
What it computes around the layers is little: an embedding before, a norm and the logits' matrix behind. Here that is
called directly, but only where a trial of both shows that it is all there is.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch

from pagetide_kernels.caches import Caches
from pagetide_kernels.cpu import layer_ops
from pagetide_kernels.cpu.decoder_layers import DecoderLayers
from pagetide_spec.config import GIB

from .batch import Batch
from .cpu_layers import CpuLayer, norm_of
from .head import Head
from .layer_types import kind_of
from .rotary_table import RotaryTable

log = logging.getLogger(__name__)


class CpuNetwork:
    """Embedding, layers, norm, and the logits' matrix, which is apart: not every row's logits are wanted."""

    def __init__(self, network: Any, layers: list[CpuLayer], max_model_len: int) -> None:
        self._embedding, self._layers = network.get_input_embeddings(), layers
        self._norm, self._eps = norm_of(network.base_model.norm)
        self.head = Head(network.get_output_embeddings(), getattr(network.config, "final_logit_softcapping", None))
        self._table = RotaryTable(network.base_model.rotary_emb, _kinds(network, layers), max_model_len)

    def over(self, caches: Caches) -> CachedNetwork:
        """The network with its keys and values in `caches`, those of each layer.

        Raises:
            ValueError: they do not fit its layers.
        """
        parts = [layer.parts(*place) for layer, place in zip(self._layers, self._table.places, strict=True)]
        layers = DecoderLayers(parts, self._norm, self._eps, caches)
        return CachedNetwork(self._embedding, self._table, layers, self.head)

    def norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """The norm behind the last layer: [R, size] -> the same"""
        return layer_ops.rms_norm(hidden, self._norm, self._eps)

    def has_angles(self, index: int, positions: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> bool:
        """Whether layer `index` rotates positions [T] by `angles`: cos and sin [1, T, 2 * pairs] of equal halves."""
        own = self._table.of_layer(self._table.rows(positions, int(positions.max()) + 1), index)
        return all(torch.equal(torch.cat((a, a), dim=1), b[0]) for a, b in zip(own, angles, strict=True))


@dataclasses.dataclass(frozen=True)
class CachedNetwork:
    """A network over one KV cache; `head` makes logits of what `hidden` gives."""

    embedding: Callable[[torch.Tensor], torch.Tensor]
    table: RotaryTable
    layers: DecoderLayers
    head: Head

    def hidden(self, batch: Batch) -> torch.Tensor:
        """float32 [R, size] of the rows whose logits are wanted. Changes the caches; raises as `DecoderLayers.run`."""
        return self.layers.run(
            self.embedding(batch.input_ids),
            self.table.rows(batch.positions, batch.max_context_len),
            batch.slots,
            batch.block_tables,
            batch.context_lens,
            batch.query_starts,
            batch.logits_rows,
        )


@torch.inference_mode()
def cpu_network(network: Any, max_model_len: int) -> CpuNetwork | None:
    """`network` by itself, where all its layers were swapped and nothing else is computed around them; else None."""
    layers = sorted((m for m in network.modules() if isinstance(m, CpuLayer)), key=lambda layer: layer.layer_idx)
    base = network.base_model
    if not layers or not hasattr(base, "rotary_emb") or not kind_of(getattr(base, "norm", base)).endswith("RMSNorm"):
        return None
    made = CpuNetwork(network, layers, max_model_len)
    if not _is_all(made, network, layers):
        return None
    made.head.prepare()
    if made.head.nbytes:
        log.info(
            "greedy tokens are found without their logits: %.2f GiB of 8 bits beside the matrix", made.head.nbytes / GIB
        )
    return made


def _kinds(network: Any, layers: list[CpuLayer]) -> list[str | None]:
    """What each layer's rotary angles depend on beside positions."""
    if "layer_type" not in inspect.signature(network.base_model.rotary_emb.forward).parameters:
        return [None] * len(layers)
    return [str(network.base_model.config.layer_types[layer.layer_idx]) for layer in layers]


def _is_all(made: CpuNetwork, network: Any, layers: list[CpuLayer]) -> bool:
    """Whether transformers' forward pass computes around the layers what `made` does, and brings them the same."""
    input_ids = torch.arange(3) % network.get_output_embeddings().out_features
    positions = torch.arange(5, 8)
    with _Trial(layers) as trial:
        logits = network(input_ids=input_ids[None], position_ids=positions[None], use_cache=False).logits[0]
    if [layer for layer, _, _ in trial.calls] != layers:
        return False
    hidden = network.get_input_embeddings()(input_ids)
    for index, (_, given, angles) in enumerate(trial.calls):
        if not torch.equal(given[0], hidden) or not made.has_angles(index, positions, angles):
            return False
        hidden = hidden + 1
    normed = network.base_model.norm(hidden)
    return torch.allclose(made.norm(hidden), normed, rtol=1e-5) and torch.equal(made.head.logits(normed), logits)


class _Trial:
    """Stands in for layers during a forward pass: notes (layer, what it is given, its angles), and adds 1."""

    def __init__(self, layers: list[Any]) -> None:
        self._layers = layers
        self.calls: list[tuple[Any, torch.Tensor, Any]] = []

    def __enter__(self) -> _Trial:
        for layer in self._layers:
            layer.forward = functools.partial(self._note, layer)
        return self

    def __exit__(self, *raised: object) -> None:
        for layer in self._layers:
            del layer.forward

    def _note(self, layer: Any, hidden_states: torch.Tensor, **others: Any) -> torch.Tensor:
        self.calls.append((layer, hidden_states, others["position_embeddings"]))
        return hidden_states + 1
