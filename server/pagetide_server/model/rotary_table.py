"""Cosines and sines of rotary positions, asked of the network once a position instead of once a step."""

from __future__ import annotations

from typing import Any

import torch

# Positions that are computed at least at once.
_LEAST = 1024


class RotaryTable:
    """The angles of positions 0, 1, ... for each layer; grows to what was asked for.

    A row holds, for each kind of layer, the cosines and the sines of one position.

    Attributes:
        places: for each layer, where in a row its cosines begin, and how many there are; as many sines follow.
    """

    def __init__(self, rotary: Any, kinds: list[str | None], limit: int) -> None:
        """`rotary` is transformers' module; `kinds` has for each layer what it must be told, if anything.

        `limit` is the number of positions that there can be.
        """
        self._rotary, self._kinds, self._limit = rotary, list(dict.fromkeys(kinds)), limit
        pairs = [part.shape[1] // 2 for part in self._asked(torch.arange(1))[::2]]
        begins = [2 * sum(pairs[:i]) for i in range(len(pairs))]
        self.places = [(begins[i], pairs[i]) for i in map(self._kinds.index, kinds)]
        self._table = torch.empty(0, 2 * sum(pairs))

    def rows(self, positions: torch.Tensor, needed: int) -> torch.Tensor:
        """float32 [T, numbers of all kinds] of `positions` int64 [T], all of which are below `needed`."""
        if needed > len(self._table):
            known = len(self._table)
            parts = self._asked(torch.arange(known, max(needed, min(self._limit, max(_LEAST, 2 * known)))))
            # The second half repeats the first.
            more = torch.cat([part[:, : part.shape[1] // 2] for part in parts], dim=1)
            self._table = torch.cat([self._table, more])
        return self._table.index_select(0, positions)

    def of_layer(self, rows: torch.Tensor, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [T, pairs] of a layer, columns of `rows`."""
        begin, pairs = self.places[index]
        return rows[:, begin : begin + pairs], rows[:, begin + pairs : begin + 2 * pairs]

    def _asked(self, positions: torch.Tensor) -> list[torch.Tensor]:
        """cos and sin of each kind, one behind the other, each [positions, 2 * pairs]"""
        like, ids = torch.empty(0), positions[None]
        asked = [self._rotary(like, ids, *([] if kind is None else [kind])) for kind in self._kinds]
        return [part[0] for both in asked for part in both]
