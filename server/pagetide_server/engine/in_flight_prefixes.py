"""Which blocks a step fills, so that a new request with the same prefix can wait for them and hit the cache."""

from __future__ import annotations

from .sequence import Row, Sequence
from .tables import BlockTables


class InFlightPrefixes:
    """The full blocks that the prompts of one step compute. Follows `rows` as it grows; each row is read once.

    Left out are prompts with `prompt_logprobs`: they take many steps, however much room a step has.
    """

    def __init__(self, rows: list[Row], tables: BlockTables) -> None:
        self._rows, self._tables = rows, tables
        self._read = 0
        self._keys: set[bytes] = set()

    def holds_next(self, sequence: Sequence, known: int) -> bool:
        """Whether the block behind the first `known` ones of a waiting sequence is among them, and of use to it."""
        if known >= self._tables.matchable(sequence):
            return False
        size = self._tables.config.block_size
        for row in self._rows[self._read :]:
            if not row.sequence.is_scored:
                full = range(row.start // size, (row.start + row.count) // size)
                self._keys.update(self._tables.key(row.sequence, i + 1) for i in full)
        self._read = len(self._rows)
        return self._tables.key(sequence, known + 1) in self._keys
