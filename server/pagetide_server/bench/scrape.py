"""The server's own figures: a histogram of its /metrics, before and after."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from pagetide_spec.metrics import SERVER_METRICS, VLLM_METRICS

from .figures import QUANTILES, Distribution

_OURS = SERVER_METRICS["request_queue_seconds"]
QUEUE_NAMES = (_OURS.full_name, *(name for name, (ours, _) in VLLM_METRICS.items() if ours == _OURS.name))

# Upper bound of a bucket -> how many values lie at or below it; and their sum under None.
Histogram = dict[float | None, float]


def histogram(text: str, name: str) -> Histogram | None:
    """A histogram out of Prometheus' text format, added up over all its labels; None where there is no such one."""
    found: Histogram = {}
    for family in text_string_to_metric_families(text):
        if family.name != name:
            continue
        for sample in family.samples:
            if sample.name in (f"{name}_bucket", f"{name}_sum"):
                key = float(sample.labels.get("le", "")) if sample.name.endswith("_bucket") else None
                found[key] = found.get(key, 0.0) + sample.value
    return found or None


def queue_time(before: str, after: str) -> Distribution | None:
    """How long requests waited between two scrapes, or None where the server does not report it, or none waited.

    Raises:
        ValueError: the text is not Prometheus'.
    """
    for name in QUEUE_NAMES:
        newer = histogram(after, name)
        if newer is not None:
            return difference(histogram(before, name) or {}, newer)
    return None


def difference(older: Mapping[float | None, float], newer: Mapping[float | None, float]) -> Distribution | None:
    """The distribution of what came between two states of a histogram; None if nothing did.

    Quantiles are interpolated within their bucket, as Prometheus' `histogram_quantile` does.
    """
    grown = {bound: count - older.get(bound, 0.0) for bound, count in newer.items() if bound is not None}
    total = grown.get(math.inf, 0.0)
    if total <= 0:
        return None
    bounds = sorted(grown.items())
    p50, p90, p99 = (_quantile(bounds, share * total) for share in QUANTILES)
    seconds = newer.get(None, 0.0) - older.get(None, 0.0)
    return Distribution(round(total), seconds / total, p50, p90, p99, _quantile(bounds, total))


def _quantile(bounds: list[tuple[float, float]], rank: float) -> float:
    for (low, below), (high, count) in itertools.pairwise([(0.0, 0.0), *bounds]):
        if count >= rank:
            # Nothing is known of how far the last bucket's values go.
            return low if high == math.inf else low + (high - low) * (rank - below) / (count - below)
    return bounds[-1][0]
