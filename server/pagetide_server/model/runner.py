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

    `host_caches` is the swap space, of the same form in host memory. Its pages are taken when they are first written.
    It is not pinned: the blocks of a swap are gathered before their transfer, so that pinning would not speed it up.
    """

    def __init__(self, loaded: LoadedModel, num_blocks: int, num_swap_blocks: int, block_size: int) -> None:
        self.loaded, self.block_size = loaded, block_size
        self.caches = self._allocate(num_blocks, loaded.device)
        self.host_caches = self._allocate(num_swap_blocks, torch.device("cpu"))

    def _allocate(self, blocks: int, device: torch.device) -> Caches:
        def empty(heads: int, dim: int) -> torch.Tensor:
            return torch.empty(blocks, self.block_size, heads, dim, dtype=self.loaded.dtype, device=device)

        return [
            (empty(layer.kv_heads, layer.key_dim), empty(layer.kv_heads, layer.value_dim))
            for layer in self.loaded.layers
        ]

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
        if step.swap_out or step.swap_in:
            pairs = list(zip(_parts(self.caches), _parts(self.host_caches), strict=True))
            swap_blocks(pairs, step.swap_out)
            swap_blocks([(host, device) for device, host in pairs], step.swap_in)
        if step.copies:
            copy_blocks(_parts(self.caches), step.copies)


def _parts(caches: Caches) -> list[torch.Tensor]:
    return [part for cache in caches for part in cache]
