"""BlockTables: the blocks of each sequence, on the device and in host memory.

Every change of a table goes through here, so that reference counts, the prefix cache and the block log agree with it.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Iterator
from typing import Literal

from .blocks import BlockPool, chain_key, root_key
from .limits import SchedulerConfig
from .sequence import Sequence, Status
from .swap_cost import cheaper_mode

BlockEvent = Callable[[Literal["allocate", "release"], str, int, abc.Sequence[int]], None]


class BlockTables:
    """Hands blocks to sequences and takes them back.

    Attributes:
        device, host: the pools of the KV cache and of the swap space.
    """

    def __init__(self, config: SchedulerConfig, on_block_event: BlockEvent | None = None) -> None:
        self.config = config
        self.device = BlockPool(config.num_blocks)
        self.host = BlockPool(config.num_swap_blocks)
        self._on_event = on_block_event

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.config.block_size)

    # ---- the prefix cache

    def key(self, sequence: Sequence, count: int) -> bytes:
        """Key of the sequence's first `count` full blocks; kept in `sequence.keys`, for its tokens never change."""
        keys, size = sequence.keys, self.config.block_size
        while len(keys) < count:
            parent = keys[-1] if keys else root_key(sequence.request.cache_salt)
            start = len(keys) * size
            keys.append(chain_key(parent, sequence.tokens[start : start + size]))
        return keys[count - 1] if count else root_key(sequence.request.cache_salt)

    def match(self, sequence: Sequence) -> list[int]:
        """Device blocks that already hold a prefix of a sequence that waits or is swapped out. Takes none.

        The newest token is never among them: its logits are needed, so it must be computed, and a block that others
        may read is not written to. A prompt that hits in full computes its last block again, into a block of its own.
        Nothing is looked up for a prompt with `prompt_logprobs`.
        """
        return self.device.lookup(self._leading_keys(sequence, self.matchable(sequence)))

    def matchable(self, sequence: Sequence) -> int:
        """Leading blocks that `match` would take if they were known."""
        if not self.config.enable_prefix_caching:
            return 0
        limit = (len(sequence.tokens) - 1) // self.config.block_size
        if sequence.status is Status.SWAPPED:
            return min(limit, sequence.computed // self.config.block_size)
        return 0 if sequence.is_scored else limit

    def _leading_keys(self, sequence: Sequence, limit: int) -> Iterator[bytes]:
        for count in range(1, limit + 1):
            yield self.key(sequence, count)

    def register(self, sequence: Sequence) -> None:
        """Let the sequence's full computed blocks be found by others."""
        full = sequence.computed // self.config.block_size
        if self.config.enable_prefix_caching:
            for i in range(sequence.registered, full):
                self.device.register(sequence.blocks[i], self.key(sequence, i + 1))
        sequence.registered = full

    # ---- growing and shrinking

    def adopt(self, sequence: Sequence, hits: list[int]) -> None:
        """Begin an empty table with the blocks that `match` found."""
        self.device.take(hits)
        sequence.blocks = hits
        sequence.computed = len(hits) * self.config.block_size
        sequence.registered = len(hits)
        self._log("allocate", sequence, hits)

    def missing(self, sequence: Sequence, length: int) -> int:
        """Blocks to allocate before tokens `computed .. length - 1` can be written, with a copy of a shared one."""
        return max(0, self.blocks_for(length) - len(sequence.blocks)) + self._writes_shared(sequence)

    def _writes_shared(self, sequence: Sequence) -> bool:
        index = sequence.computed // self.config.block_size
        return index < len(sequence.blocks) and self.device.refs[sequence.blocks[index]] > 1

    def extend(self, sequence: Sequence, length: int) -> list[tuple[int, int]]:
        """Make tokens `computed .. length - 1` writable; returns the copies (from, to) that this needs.

        The caller has seen to it that `missing` blocks are available.
        """
        copies = []
        new = self._allocate(self.device, self.missing(sequence, length))
        if self._writes_shared(sequence):
            index = sequence.computed // self.config.block_size
            copies.append((sequence.blocks[index], new[0]))
            sequence.blocks[index] = new[0]
        sequence.blocks += new[len(copies) :]
        shared = [block for block, _ in copies]
        self.device.release(shared)
        # Reported last: whatever the listener does, the blocks have their owner.
        self._log("allocate", sequence, new)
        self._log("release", sequence, shared)
        return copies

    def fork(self, sequence: Sequence, sibling: Sequence) -> None:
        """Let `sibling` share all blocks of `sequence`; whoever writes into a shared one copies it first."""
        self.device.take(sequence.blocks)
        sibling.blocks = list(sequence.blocks)
        sibling.computed = sequence.computed
        sibling.registered = sequence.registered
        sibling.keys = list(sequence.keys)
        self._log("allocate", sibling, sibling.blocks)

    def release(self, sequence: Sequence) -> None:
        """Take back all blocks of the sequence, on the device and in host memory; nothing of it is computed then."""
        self._log("release", sequence, sequence.blocks)
        self.device.release(sequence.blocks)
        self.host.release(sequence.host_blocks)
        sequence.blocks, sequence.host_blocks = [], []
        sequence.computed = sequence.registered = 0

    # ---- swapping

    def is_swap_better(self, sequence: Sequence) -> bool:
        """Whether a sequence that is to be preempted is swapped out rather than recomputed.

        Mode `swap` falls back on recompute when the swap space is full; no mode copies a block with nothing in it.
        """
        count = self.blocks_for(sequence.computed)
        if self.config.preemption_mode == "recompute" or not 0 < count <= self.host.available:
            return False
        if self.config.preemption_mode == "swap":
            return True
        refs, size = self.device.refs, self.config.block_size
        kept = sum(refs[block] > 1 for block in sequence.blocks[: sequence.computed // size])
        return cheaper_mode(self.config, blocks=count, tokens=sequence.computed - kept * size) == "swap"

    def swap_out(self, sequence: Sequence) -> list[tuple[int, int]]:
        """Move the sequence's computed tokens to host memory; returns the copies (device, host) that this needs."""
        count = self.blocks_for(sequence.computed)
        sequence.host_blocks = self._allocate(self.host, count)
        pairs = list(zip(sequence.blocks[:count], sequence.host_blocks, strict=True))
        self._log("release", sequence, sequence.blocks)
        self.device.release(sequence.blocks)
        sequence.blocks = []
        sequence.registered = 0
        return pairs

    def swap_in(self, sequence: Sequence, hits: list[int]) -> list[tuple[int, int]]:
        """Bring the sequence back to the device; returns the copies (host, device) that this needs.

        What `match` found there need not be copied.
        """
        self.device.take(hits)
        new = self._allocate(self.device, len(sequence.host_blocks) - len(hits))
        pairs = list(zip(sequence.host_blocks[len(hits) :], new, strict=True))
        sequence.blocks = hits + new
        sequence.registered = len(hits)
        self.host.release(sequence.host_blocks)
        sequence.host_blocks = []
        self._log("allocate", sequence, sequence.blocks)
        return pairs

    def _allocate(self, pool: BlockPool, count: int) -> list[int]:
        blocks = pool.allocate(count)
        if blocks is None:
            raise RuntimeError(f"{count} blocks were promised, but only {pool.available} are available")
        return blocks

    def _log(self, event: Literal["allocate", "release"], sequence: Sequence, blocks: abc.Sequence[int]) -> None:
        if self._on_event is not None and blocks:
            self._on_event(event, sequence.request_id, sequence.index, list(blocks))
