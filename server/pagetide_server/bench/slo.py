"""Limits that a run must keep: `--slo ttft_p99=0.5`."""

from __future__ import annotations

import dataclasses
import math
import operator

from .figures import Summary

LATENCIES = ("ttft", "inter_token", "e2e", "queue")
STATISTICS = ("mean", "p50", "p90", "p99", "max")
# These must be at least, all others at most what is asked.
RATES = ("requests_per_s", "input_tokens_per_s", "output_tokens_per_s")
NAMES = (*(f"{latency}_{s}" for latency in LATENCIES for s in STATISTICS), *RATES, "error_rate")


@dataclasses.dataclass(frozen=True, slots=True)
class Slo:
    """One limit: seconds for a latency, per second for a rate, a share for `error_rate`."""

    name: str
    limit: float

    def failure(self, summary: Summary) -> str | None:
        """One line that says how the run failed it, or None."""
        value = measured(self.name, summary)
        if value is None:
            return f"SLO failed: {self.name} was not measured; it was to be {self._sign} {self.limit:g}"
        keeps = operator.ge if self.name in RATES else operator.le
        if keeps(value, self.limit):
            return None
        return f"SLO failed: {self.name} is {value:.4g}; it was to be {self._sign} {self.limit:g}"

    @property
    def _sign(self) -> str:
        return ">=" if self.name in RATES else "<="


def slo(text: str) -> Slo:
    """`NAME=LIMIT`.

    Raises:
        ValueError: says what is wrong.
    """
    name, equals, limit = text.partition("=")
    if name not in NAMES or not equals:
        raise ValueError(f"must be NAME=LIMIT; NAME is one of {', '.join(NAMES)}")
    try:
        found = float(limit)
    except ValueError:
        found = math.nan
    # Nothing would keep a limit of NaN.
    if math.isnan(found):
        raise ValueError(f"the limit must be a number, not {limit!r}")
    return Slo(name, found)


def measured(name: str, summary: Summary) -> float | None:
    """The figure of that name, or None where there is none."""
    if name in RATES:
        return summary.rates[name]
    if name == "error_rate":
        return summary.error_rate
    latency, _, statistic = name.rpartition("_")
    found = summary.latencies[latency]
    return getattr(found, statistic) if found is not None else None
