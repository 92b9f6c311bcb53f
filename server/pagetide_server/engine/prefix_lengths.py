"""How long the prefixes are that prompts share, and what another block size would make of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

BLOCK_SIZES = (8, 16, 32)


class PrefixLengths:
    """Statistic of common-prefix lengths, fed with each prompt when it is admitted.

    A prefix cache finds whole blocks only: of a common prefix of L tokens it saves `L // block_size * block_size`,
    and `L % block_size` tokens are computed again. This class measures L, which the cache itself cannot see.

    What it estimates: L is the prefix that the prompt shares with *recently seen prompts*, whether or not their
    blocks are still in memory, so its totals are what an unlimited cache of each block size would have saved. It is a
    lower bound of that: for each block-aligned prefix only the newest continuation is remembered, of at most
    `capacity` prefixes, and answers are not remembered. Smaller blocks also cost more bookkeeping and slower
    attention, which it does not weigh.

    Attributes:
        prompts: prompts seen.
        prompt_tokens: their tokens.
        remainders: how many prompts had a common prefix with `L % block_size == i`, for each i; prompts that share
            nothing (L = 0) are left out.
        tail_tokens: tokens of common prefixes behind their last full block of the engine's size: what it lost.
        saved_tokens: for each block size in `BLOCK_SIZES` and the engine's own, the tokens that it would have saved.
    """

    def __init__(self, block_size: int, capacity: int = 8192) -> None:
        self.block_size = block_size
        self.capacity = capacity
        self.prompts = 0
        self.prompt_tokens = 0
        self.remainders = [0] * block_size
        self.tail_tokens = 0
        self.saved_tokens = dict.fromkeys(sorted({*BLOCK_SIZES, block_size}), 0)
        self._continuations: OrderedDict[bytes, Sequence[int]] = OrderedDict()

    def observe(self, token_ids: Sequence[int], parent_key: Callable[[int], bytes]) -> int:
        """Count one prompt and remember it; returns the length of its common prefix.

        `parent_key(i)` is the key of all that precedes block i (see `blocks.chain_key`).
        """
        length = self._common(token_ids, parent_key)
        self.prompts += 1
        self.prompt_tokens += len(token_ids)
        if length:
            self.remainders[length % self.block_size] += 1
        # The last token of a prompt is always computed: its logits are needed.
        usable = min(length, len(token_ids) - 1)
        self.tail_tokens += usable % self.block_size
        for size in self.saved_tokens:
            self.saved_tokens[size] += usable // size * size
        self._remember(token_ids, parent_key)
        return length

    def summary(self) -> str:
        """One line for a log."""
        saved = ", ".join(f"{tokens} with blocks of {size}" for size, tokens in self.saved_tokens.items())
        return (
            f"{self.prompts} prompts of {self.prompt_tokens} tokens; of prefixes that they share, an unlimited cache "
            f"saves {saved}; {self.tail_tokens} tokens lie behind the last full block of {self.block_size}"
        )

    def _common(self, token_ids: Sequence[int], parent_key: Callable[[int], bytes]) -> int:
        length = 0
        while length < len(token_ids):
            known = self._continuations.get(parent_key(length // self.block_size))
            if known is None:
                return length
            block = token_ids[length : length + self.block_size]
            if known == block and len(known) == self.block_size:
                length += self.block_size
                continue
            same = next((i for i, (a, b) in enumerate(zip(known, block, strict=False)) if a != b), None)
            if same is not None:
                return length + same
            length += min(len(known), len(block))
            if len(known) < self.block_size:
                return length
        return length

    def _remember(self, token_ids: Sequence[int], parent_key: Callable[[int], bytes]) -> None:
        # Backwards: of a prompt longer than the capacity, the beginning stays.
        for start in reversed(range(0, len(token_ids), self.block_size)):
            key = parent_key(start // self.block_size)
            self._continuations[key] = token_ids[start : start + self.block_size]
            self._continuations.move_to_end(key)
        while len(self._continuations) > self.capacity:
            self._continuations.popitem(last=False)
