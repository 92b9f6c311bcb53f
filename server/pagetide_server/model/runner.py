"""Run the network on one step after the other, with its KV cache in blocks."""

from __future__ import annotations

import dataclasses

import torch

from pagetide_kernels.copy_blocks import copy_blocks
from pagetide_kernels.swap_blocks import swap_blocks

from ..engine.faults import DeviceLost
from ..engine.sequence import Step
from .attention import StepAttention
from .batch import Batch, make_batch
from .loader import LoadedModel

# After an illegal access or a hardware fault every call of the process fails; older torch has no type for it.
_LOST: tuple[type[Exception], ...] = (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()

Caches = list[tuple[torch.Tensor, torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class StepLogits:
    """Logits of one step, float32.

    sampling: [len(step.sampling()), vocab], in that order; siblings have equal rows. prompt: for each index into
    `step.rows` whose request wants `prompt_logprobs` and which computed prompt positions, [positions, vocab].
    """

    sampling: torch.Tensor
    prompt: dict[int, torch.Tensor]


class Runner:
    """The network and its KV cache: keys and values of each layer, [blocks, block_size, kv_heads, head_dim].

    The swap space of the same form lies in host memory, pinned for a GPU, and is allocated at the first swap.
    """

    def __init__(self, loaded: LoadedModel, num_blocks: int, num_swap_blocks: int, block_size: int) -> None:
        self.loaded, self.block_size = loaded, block_size
        self.num_swap_blocks = num_swap_blocks
        self.caches = self._allocate(num_blocks, loaded.device)
        self._host_caches: Caches | None = None

    def _allocate(self, blocks: int, device: torch.device) -> Caches:
        pinned = device.type == "cpu" and self.loaded.device.type == "cuda"

        def empty(heads: int, dim: int) -> torch.Tensor:
            shape = (blocks, self.block_size, heads, dim)
            return torch.empty(shape, dtype=self.loaded.dtype, device=device, pin_memory=pinned)

        return [
            (empty(layer.kv_heads, layer.key_dim), empty(layer.kv_heads, layer.value_dim))
            for layer in self.loaded.layers
        ]

    @property
    def host_caches(self) -> Caches:
        """The swap space."""
        if self._host_caches is None:
            self._host_caches = self._allocate(self.num_swap_blocks, torch.device("cpu"))
        return self._host_caches

    @torch.inference_mode()
    def execute(self, step: Step) -> StepLogits:
        """Do what the step says, up to the logits. Changes the caches.

        Raises:
            DeviceLost: no later step can succeed. (Too little memory is not of this kind.)
        """
        try:
            return self._execute(step)
        except _LOST as error:
            raise DeviceLost(f"the device computes nothing any more: {error}") from error

    def _execute(self, step: Step) -> StepLogits:
        self._move_blocks(step)
        batch = make_batch(step, self.block_size, self.loaded.device)
        logits = self._forward(batch)
        prompt = {row: logits[first : first + count] for row, (first, count) in batch.prompt.items()}
        # Without prompt logits and siblings each wanted row is one sampling row already.
        simple = not prompt and len(batch.sampling) == len(batch.logits_rows)
        return StepLogits(logits if simple else logits.index_select(0, batch.sampling), prompt)

    def _forward(self, batch: Batch) -> torch.Tensor:
        """float32 [wanted rows, vocab]"""
        network, vocab = self.loaded.network, self.loaded.vocab_size
        logits: torch.Tensor
        inputs = {
            "input_ids": batch.input_ids[None],
            "position_ids": batch.positions[None],
            "use_cache": False,
            "paged": StepAttention(batch, self.caches),
        }
        if not len(batch.logits_rows):
            # Nothing to sample yet: the decoder without the logits matrix.
            network.base_model(**inputs)
            return torch.empty(0, vocab, device=self.loaded.device)
        logits = network(**inputs, logits_to_keep=batch.logits_rows).logits[0]
        return logits.float()

    def _move_blocks(self, step: Step) -> None:
        if step.swap_out:
            for device, host in self._pairs():
                swap_blocks(device, host, step.swap_out)
        if step.swap_in:
            for device, host in self._pairs():
                swap_blocks(host, device, step.swap_in)
        for cache in self.caches:
            for part in cache:
                copy_blocks(part, step.copies)

    def _pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [
            pair
            for mine, host in zip(self.caches, self.host_caches, strict=True)
            for pair in zip(mine, host, strict=True)
        ]
