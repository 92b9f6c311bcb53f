"""Cosines and sines of rotary positions, asked of the network once a position instead of once a step."""

from __future__ import annotations

from typing import Any

import torch

# Positions are computed by so many.
_PIECE = 1024


class RotaryTable:
    """The angles of positions 0, 1, ... for each layer; filled as far as was asked for.

    It has room for all positions from the start, which takes memory only where it is filled. A row holds, for each kind
    of layer, the cosines and the sines of one position.

    Attributes:
        places: for each layer, where in a row its cosines begin, and how many there are; as many sines follow.
    """

    def __init__(self, rotary: Any, kinds: list[str | None], limit: int) -> None:
        """`rotary` is transformers' module; `kinds` has for each layer what it must be given, if anything.

        `limit` is the number of positions that there can be.
        """
        self._rotary, self._kinds, self._limit = rotary, list(dict.fromkeys(kinds)), limit
        pairs = [part.shape[1] // 2 for part in self._asked(torch.arange(1))[::2]]
        begins = [2 * sum(pairs[:i]) for i in range(len(pairs))]
        self.places = [(begins[i], pairs[i]) for i in map(self._kinds.index, kinds)]
        # (A trial of the network has a few positions, however short the window.)
        self._table, self._known = torch.empty(max(limit, _PIECE), 2 * sum(pairs)), 0

    def rows(self, positions: torch.Tensor, needed: int) -> torch.Tensor:
        """float32 [T, numbers of all kinds] of `positions` int64 [T], all of which are below `needed`."""
        if needed > self._known:
            end = max(needed, min(self._limit, -(-needed // _PIECE) * _PIECE))
            parts = self._asked(torch.arange(self._known, end))
            # The second half repeats the first.
            torch.cat([part[:, : part.shape[1] // 2] for part in parts], dim=1, out=self._table[self._known : end])
            self._known = end
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
