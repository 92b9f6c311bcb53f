"""Run the network on one step after the other, with its KV cache in blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from pagetide_kernels.caches import Caches
from pagetide_kernels.copy_blocks import copy_blocks
from pagetide_kernels.swap_blocks import swap_blocks

from ..engine.faults import DeviceLost
from ..engine.sampling.lazy import LazyLogits
from ..engine.sequence import DeviceTokens, Step
from .attention import StepAttention
from .batch import Batch, host_batch
from .graphs import DecodeGraphs, GraphLimits, Recorder
from .loader import LoadedModel

# After an illegal access or a hardware fault every call of the process fails; older torch has no type for it.
_LOST: tuple[type[Exception], ...] = (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()


@dataclasses.dataclass(frozen=True)
class StepLogits:
    """Logits of one step, float32.

    sampling: [len(step.sampling()), vocab], in that order; siblings have equal rows. prompt: for each index into
    `step.rows` whose request wants `prompt_logprobs` and which computed prompt positions, [positions, vocab].
    """

    sampling: torch.Tensor | LazyLogits
    prompt: dict[int, torch.Tensor]

    def written(self) -> torch.Tensor:
        """`sampling` as a tensor, computed now where it was not."""
        return self.sampling.written() if isinstance(self.sampling, LazyLogits) else self.sampling


class Runner:
    """The network and its KV cache: keys and values of each layer, [blocks, block_size, kv_heads, head_dim].

    `host_caches` is the swap space, of the same form in host memory. Its pages are taken when they are first written.
    It is not pinned: the blocks of a swap are gathered before their transfer, so that pinning would not speed it up.
    """

    def __init__(self, loaded: LoadedModel, num_blocks: int, num_swap_blocks: int, block_size: int) -> None:
        self.loaded, self.block_size = loaded, block_size
        # One more than the scheduler knows, for the padding of captured steps.
        self.idle_block = num_blocks
        self.caches = self._allocate(num_blocks + 1, loaded.device)
        self.host_caches = self._allocate(num_swap_blocks, torch.device("cpu"))
        self._graphs: DecodeGraphs | None = None
        self._cpu = None if loaded.cpu is None else loaded.cpu.over(self.caches)

    def record(
        self,
        max_num_seqs: int,
        max_model_len: int,
        recorder: Recorder,
        progress: Callable[[float], None] = lambda fraction: None,
        sizes: list[int] | None = None,
    ) -> None:
        """Capture decode steps of up to `max_num_seqs` sequences; from now on `execute` replays them where they fit.

        Arguments as of `DecodeGraphs`. Raises what torch raises where the network waits for the device.
        """
        limits = GraphLimits(max_num_seqs, max_model_len, self.block_size, self.idle_block, self.loaded.vocab_size)
        self._graphs = DecodeGraphs(self._logits, limits, self.loaded.device, recorder, progress, sizes)

    def _allocate(self, blocks: int, device: torch.device) -> Caches:
        def empty(heads: int, dim: int) -> torch.Tensor:
            return torch.empty(blocks, self.block_size, heads, dim, dtype=self.loaded.cache_dtype, device=device)

        return [
            (empty(layer.kv_heads, layer.key_dim), empty(layer.kv_heads, layer.value_dim))
            for layer in self.loaded.layers
        ]

    @torch.inference_mode()
    def execute(self, step: Step, device_tokens: DeviceTokens | None = None) -> StepLogits:
        """Do what the step says, up to the logits. Changes the caches. Waits for the device only to swap.

        `device_tokens` has the tokens that the step's sequences do not know yet. Logits may be overwritten by the next
        call.

        Raises:
            DeviceLost: no later step can succeed. (Too little memory is not of this kind.)
        """
        try:
            return self._execute(step, device_tokens)
        except _LOST as error:
            raise DeviceLost(f"the device computes nothing any more: {error}") from error

    def _execute(self, step: Step, device_tokens: DeviceTokens | None) -> StepLogits:
        self._move_blocks(step)
        host = host_batch(step, self.block_size, device_tokens)
        if self._graphs is not None and self._graphs.fits(host):
            return StepLogits(self._graphs.run(host, device_tokens), {})
        batch = host.to(self.loaded.device, device_tokens)
        # Without prompt logits and siblings each wanted row is one sampling row already.
        simple = not batch.prompt and len(batch.sampling) == len(batch.logits_rows)
        if (cpu := self._cpu) is not None and cpu.head.chooses and not batch.prompt:
            hidden = cpu.hidden(batch)
            return StepLogits(LazyLogits(hidden if simple else hidden.index_select(0, batch.sampling), cpu.head), {})
        logits = self._forward(batch)
        prompt = {row: logits[first : first + count] for row, (first, count) in batch.prompt.items()}
        return StepLogits(logits if simple else logits.index_select(0, batch.sampling), prompt)

    def _forward(self, batch: Batch) -> torch.Tensor:
        """float32 [wanted rows, vocab]"""
        return self._logits(batch).float()

    def _logits(self, batch: Batch) -> torch.Tensor:
        """[wanted rows, vocab] in the model's own type."""
        if self._cpu is None:
            return self._by_transformers(batch)
        hidden = self._cpu.hidden(batch)
        return self._cpu.head.logits(hidden) if len(hidden) else torch.empty(0, self.loaded.vocab_size)

    def _by_transformers(self, batch: Batch) -> torch.Tensor:
        """`_logits` by the network's own forward pass."""
        network, vocab = self.loaded.network, self.loaded.vocab_size
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
        return network(**inputs, logits_to_keep=batch.logits_rows).logits[0]  # type: ignore[no-any-return]

    def _move_blocks(self, step: Step) -> None:
        if step.swap_out or step.swap_in:
            pairs = list(zip(_parts(self.caches), _parts(self.host_caches), strict=True))
            swap_blocks(pairs, step.swap_out)
            swap_blocks([(host, device) for device, host in pairs], step.swap_in)
        if step.copies:
            copy_blocks(_parts(self.caches), step.copies)


def _parts(caches: Caches) -> list[torch.Tensor]:
    return [part for cache in caches for part in cache]
