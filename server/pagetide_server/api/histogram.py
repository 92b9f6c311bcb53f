"""A histogram that can be filled for every token: one binary search and one addition."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.utils import floatToGoString


class Histogram:
    """Counts of observations by bucket, and their sum. Filled and read in one thread."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` over."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it), as Prometheus wants them: growing, the last one +Inf."""
        rows, running = [], 0
        for bound, count in zip([*map(floatToGoString, self.bounds), "+Inf"], self.counts, strict=True):
            running += count
            rows.append((bound, float(running)))
        return rows
