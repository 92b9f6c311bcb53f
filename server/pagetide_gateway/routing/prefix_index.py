"""What a replica has in its prefix cache, as far as somebody outside can know: the blocks that were sent to it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

# For a replica that has not reported its size yet. An entry takes about 130 bytes.
DEFAULT_BLOCKS = 16_384
MAX_BLOCKS = 65_536


class PrefixIndex:
    """Block hashes in the order of their last use, at most `capacity` of them."""

    def __init__(self, capacity: int = DEFAULT_BLOCKS, most: int = MAX_BLOCKS) -> None:
        self.most = most
        self.capacity = min(capacity, most)
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, blocks: Sequence[int]) -> int:
        """How many blocks from the beginning are here."""
        known = self._blocks
        for count, block in enumerate(blocks):
            if block not in known:
                return count
        return len(blocks)

    def add(self, blocks: Sequence[int]) -> None:
        """Now used. The beginning counts as used last: without it, what follows cannot be found."""
        known = self._blocks
        # More than fits would push out its own beginning.
        for block in reversed(blocks[: self.capacity]):
            known[block] = None
            known.move_to_end(block)
        self._trim()

    def resize(self, capacity: int) -> None:
        """Hold at most so many blocks, within 1 and `most`."""
        self.capacity = max(1, min(capacity, self.most))
        self._trim()

    def limit(self, most: int) -> None:
        """From now on hold no more than `most`, whatever size the replica reports."""
        self.most = max(1, min(most, MAX_BLOCKS))
        self.resize(self.capacity)

    def clear(self) -> None:
        """The replica has begun again."""
        self._blocks.clear()

    def _trim(self) -> None:
        while len(self._blocks) > self.capacity:
            self._blocks.popitem(last=False)
