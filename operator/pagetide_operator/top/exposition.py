"""One scrape of a server's `/metrics`, and what happened between two of them. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from pagetide_spec.metrics import PREFIX, SERVER_METRICS

from ..autoscaling.samples import Buckets
from ..autoscaling.windows import count_of, difference, quantile
from .numbers import plain


@dataclasses.dataclass(frozen=True)
class Look:
    """What a server said at one time. `values`: by short name and, where it has one, the value of its own label."""

    at: float
    values: Mapping[tuple[str, str], float]
    histograms: Mapping[str, Buckets]

    def value(self, name: str, label: str = "") -> float | None:
        """One number, or None where it was not exported or is none (NaN, infinite)."""
        found = self.values.get((name, label))
        return found if found is not None and math.isfinite(found) else None

    def total(self, name: str) -> float:
        """The sum over the labels of a metric."""
        return sum(value for (known, _), value in self.values.items() if known == name and math.isfinite(value))

    def labels(self, name: str) -> list[str]:
        """Values of the label of a metric, in order."""
        return sorted(label for known, label in self.values if known == name)


def look(text: str, at: float) -> Look:
    """Read an exposition text; what is no metric of a server of ours is passed over.

    Raises:
        ValueError: it is none, or none of a server of ours.
    """
    values: dict[tuple[str, str], float] = defaultdict(float)
    buckets: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            short = sample.name.removeprefix(PREFIX)
            name = short.removesuffix("_bucket")
            metric = SERVER_METRICS.get(name)
            if metric is not None and metric.buckets:
                if short != name:
                    buckets[name][_bound(sample.labels)] += sample.value
            elif metric is not None:
                own = sample.labels.get(metric.labels[0], "") if len(metric.labels) == 1 else ""
                values[name, plain(own)] += sample.value
    if ("requests_running", "") not in values:
        raise ValueError("these are not the metrics of a Pagetide server")
    return Look(at, dict(values), {name: tuple(sorted(found.items())) for name, found in buckets.items()})


def _bound(labels: Mapping[str, str]) -> float:
    if "le" not in labels:
        raise ValueError("a histogram's bucket has no label le")
    return float(labels["le"])


@dataclasses.dataclass(frozen=True)
class Change:
    """What happened from one look to a later one; rates are per second."""

    before: Look
    after: Look

    @property
    def seconds(self) -> float:
        """Time between the two."""
        return self.after.at - self.before.at

    def rate(self, name: str, label: str | None = None) -> float | None:
        """How fast a counter grew; over all its labels unless one is named. None without a time between."""
        if self.seconds <= 0:
            return None
        if label is None:
            grown = self.after.total(name) - self.before.total(name)
        else:
            grown = (self.after.value(name, label) or 0.0) - (self.before.value(name, label) or 0.0)
        return max(0.0, grown) / self.seconds

    def quantile(self, name: str, share: float) -> float | None:
        """A quantile of what was observed in between; None where nothing was."""
        seen = difference(self.before.histograms.get(name, ()), self.after.histograms.get(name, ()))
        if not count_of(seen):
            return None
        found = quantile(seen, share)
        return found if math.isfinite(found) else None

    def ratio(self, part: str, whole: str) -> float | None:
        """Growth of one counter over that of another; None where that did not grow."""
        all_of_it = self.rate(whole)
        return (self.rate(part) or 0.0) / all_of_it if all_of_it else None


def has_begun_anew(before: Look, after: Look) -> bool:
    """Whether the second scrape is of another process."""
    return after.total("engine_steps_total") < before.total("engine_steps_total")
