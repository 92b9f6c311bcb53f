"""Distinguishes a watch that failed silently from one that is merely behind. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class Watchdog:
    """Compares what each relist found with what the watches reported.

    A single difference means little: the list may be some milliseconds ahead. Two lists in a row that differ, with no
    event of that kind between them, mean that its watch is dead. Only `watched` kinds have one.
    """

    def __init__(self, watched: Iterable[str]) -> None:
        self._watched = frozenset(watched)
        self._suspects: dict[str, int] = {}

    def dead_watches(self, corrected: Mapping[str, int], events: Mapping[str, int]) -> list[str]:
        """Kinds whose watch is dead, from the corrections of one relist and the events seen so far, by kind."""
        differing = {kind for kind, count in corrected.items() if count and kind in self._watched}
        dead = [k for k in sorted(differing) if self._suspects.get(k) == events.get(k, 0)]
        self._suspects = {k: events.get(k, 0) for k in differing}
        return dead
