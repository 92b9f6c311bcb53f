"""BlockPool: which KV blocks are free, cached or used, and reference counts. Numbers only; the tensors lie elsewhere.

A block is in exactly one state: `used` (reference count above 0), `cached` (count 0, content still findable by its
key) or `free` (count 0, content worthless). All operations are O(1) a block.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

KEY_BYTES = 16


def root_key(salt: str) -> bytes:
    """Parent key of a sequence's first block; sequences with different salts never share a block."""
    # A JSON string may hold half a surrogate pair, which plain UTF-8 cannot encode.
    return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES, person=b"pagetide-root").digest()


def chain_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Key of a full block: a 128-bit BLAKE2b digest of the parent's key and the block's token ids.

    The key stands for the whole text up to the block's end, so equal keys mean equal keys and values in the cache.
    """
    return blake2b(parent + array("I", token_ids).tobytes(), digest_size=KEY_BYTES).digest()


class BlockPool:
    """Reference-counted blocks `0 .. num_blocks - 1` with a cache of the contents of released ones.

    Of two sequences that fill the same content at the same time, the first to `register` it is found by others; the
    second keeps its own copy, which becomes `free` at its release. (Joining them would change a table while a step
    that reads it may be under way, to save memory only until one of the two ends.)

    Attributes:
        refs: reference count of each block; read by the scheduler's inner loop, changed only here.
        allocations: blocks handed out with new content since start.
        failures: failed allocations.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.refs = [0] * num_blocks
        self.allocations = 0
        self.failures = 0
        self._keys: list[bytes | None] = [None] * num_blocks
        self._index: dict[bytes, int] = {}
        # Lowest numbers first: easier to read in logs, and the cache stays dense while it is little used.
        self._free = list(range(num_blocks - 1, -1, -1))
        # Least recently released first.
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Blocks without content."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks that no sequence holds but whose content can be found."""
        return len(self._cached)

    @property
    def used(self) -> int:
        """Blocks that at least one table holds."""
        return self.num_blocks - len(self._free) - len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that `allocate` could hand out now."""
        return len(self._free) + len(self._cached)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each, or None (and nothing changed but `failures`) if there are fewer.

        Takes free blocks first, then evicts cached ones, least recently released first.
        """
        if count > self.available:
            self.note_failure()
            return None
        blocks = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self.refs[block] = 1
        self.allocations += count
        return blocks

    def note_failure(self) -> None:
        """Count that too few blocks were to be had; a caller that preempts instead of allocating says so."""
        self.failures += 1

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        key = self._keys[block]
        assert key is not None
        del self._index[key]
        self._keys[block] = None
        return block

    def take(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of `blocks`, which are used or cached."""
        for block in blocks:
            if self.refs[block] == 0:
                del self._cached[block]
            self.refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each block of a table, given in the table's order.

        Blocks that no sequence holds any more stay cached if their content has a key. The last blocks of the table
        count as released first: a prefix is of use to more prompts than what follows it.
        """
        for block in reversed(blocks):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                if self._keys[block] is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None

    def lookup(self, keys: Iterable[bytes]) -> list[int]:
        """Blocks that hold the longest cached prefix of `keys`. Changes nothing; `take` them to keep them."""
        found = []
        for key in keys:
            block = self._index.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` no sequence holds, so that taking them makes fewer available."""
        return sum(self.refs[block] == 0 for block in blocks)

    def register(self, block: int, key: bytes) -> None:
        """Let a used, full and computed block be found by `key`; of equal contents the first one stays known."""
        if self._keys[block] is None and key not in self._index:
            self._keys[block] = key
            self._index[key] = block

    def is_known(self, block: int) -> bool:
        """Whether a block can be found by its key; then its content must not change."""
        return self._keys[block] is not None

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Compare states, keys and reference counts with each other and with all `tables` that hold blocks.

        Raises:
            AssertionError: they disagree.
        """
        held = [0] * self.num_blocks
        for table in tables:
            assert len(set(table)) == len(table), f"a table holds a block twice: {table}"
            for block in table:
                held[block] += 1
        assert held == self.refs, "reference counts differ from the tables"
        free, cached = set(self._free), set(self._cached)
        used = {block for block, count in enumerate(self.refs) if count > 0}
        assert len(free) == len(self._free), "a block is free twice"
        assert free | cached | used == set(range(self.num_blocks)), "a block is lost"
        assert len(free) + len(cached) + len(used) == self.num_blocks, "a block has two states"
        assert self.free + self.cached + self.used == self.num_blocks
        assert self._index == {key: block for block, key in enumerate(self._keys) if key is not None}
        assert all(self._keys[block] is None for block in free), "a free block has a key"
        assert all(self._keys[block] is not None for block in cached), "a cached block has no key"
