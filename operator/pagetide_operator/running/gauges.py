"""Gauges that are read from what the operator has seen when they are scraped; nothing is kept here."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pagetide_spec.metrics import OPERATOR_METRICS
from pagetide_spec.names import ANNOTATION_DRAINING

from ..cluster.pods import is_alive, is_ready
from ..cluster.store import Name, Object, Store

STATES = ("desired", "ready", "starting", "draining")


class StoreGauges(Collector):
    """Replicas and conditions of every service, and how long each watch has been quiet.

    Args:
        heard: when the last event of each kind came, by `clock`.
    """

    def __init__(self, store: Store, heard: Mapping[str, float], clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._heard, self._clock = store, heard, clock

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing: the registry need not look for clashes."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The families, as the registry asks for them."""
        replicas, conditions = _family("operator_service_replicas"), _family("operator_service_condition")
        for name in self._store.resources():
            counts = replicas_of(self._store.children(name))
            for state in STATES:
                replicas.add_metric([*name, state], counts[state])
            for (kind, reason), holds in conditions_of(self._store, name).items():
                conditions.add_metric([*name, kind, reason], float(holds))
        ages = _family("operator_watch_age_seconds")
        for kind, at in sorted(self._heard.items()):
            ages.add_metric([kind], self._clock() - at)
        yield from (replicas, conditions, ages)


def replicas_of(children: list[Object]) -> Counter[str]:
    """How many replicas a service's children make, by state. One that drains is ready as well until it is gone."""
    out: Counter[str] = Counter()
    for child in children:
        if child["kind"] == "Deployment":
            out["desired"] += child.get("spec", {}).get("replicas", 1)
        elif child["kind"] == "Pod" and is_alive(child):
            out["ready" if is_ready(child) else "starting"] += 1
            out["draining"] += ANNOTATION_DRAINING in (child["metadata"].get("annotations") or {})
    return out


def conditions_of(store: Store, name: Name) -> dict[tuple[str, str], bool]:
    """(condition, reason) -> whether it holds, as the service's status says."""
    status = (store.resource(name) or {}).get("status") or {}
    return {(c["type"], c.get("reason", "")): c["status"] == "True" for c in status.get("conditions") or []}


def _family(name: str) -> GaugeMetricFamily:
    spec = OPERATOR_METRICS[name]
    return GaugeMetricFamily(spec.full_name, spec.help, labels=spec.labels)
