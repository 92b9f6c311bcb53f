"""What the operator counts of its own work; `running/health.py` exports it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pagetide_spec.metrics import OPERATOR_METRICS

from .autoscaling.policy import Decision


class Telemetry:
    """Counters of one operator; each instance has its own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = self._counter("operator_reconciles_total")
        self.reconcile_seconds = self._histogram("operator_reconcile_seconds")
        self.corrections = self._counter("operator_relist_corrections_total")
        self.waiting = self._gauge("operator_queue_length")
        self.services = self._gauge("operator_services")
        self.is_leader = self._gauge("operator_leader")
        self.scrapes = self._counter("operator_scrapes_total")
        self._changes = self._counter("operator_scale_changes_total")
        self._desired = self._gauge("operator_desired_replicas")
        self._asked = self._gauge("operator_asked_replicas")
        # There from the start, so that a first failure is a rise.
        for outcome in ("ok", "error"):
            self.reconciles.labels(outcome)
        for outcome in ("ok", "failed"):
            self.scrapes.labels(outcome)

    def _counter(self, name: str) -> Counter:
        spec = OPERATOR_METRICS[name]
        return Counter(spec.full_name, spec.help, spec.labels, registry=self.registry)

    def _gauge(self, name: str) -> Gauge:
        spec = OPERATOR_METRICS[name]
        return Gauge(spec.full_name, spec.help, spec.labels, registry=self.registry)

    def _histogram(self, name: str) -> Histogram:
        spec = OPERATOR_METRICS[name]
        return Histogram(spec.full_name, spec.help, spec.labels, buckets=spec.buckets, registry=self.registry)

    def scaling(self, name: tuple[str, str], decision: Decision, desired: int) -> None:
        """What was decided about a service."""
        self._desired.labels(*name).set(desired)
        for ask in decision.asks:
            self._asked.labels(*name, ask.signal).set(ask.replicas)
        # There before it happens, as above.
        for direction, winner in (("up", "wake"), ("down", "idle"), *_steps(decision)):
            self._changes.labels(*name, direction, winner)

    def scaled(self, name: tuple[str, str], decision: Decision, desired: int) -> None:
        """A service's number of replicas was changed."""
        direction = "up" if desired > decision.current else "down"
        self._changes.labels(*name, direction, decision.winner).inc()

    def forget_scaling(self, name: tuple[str, str]) -> None:
        """The service is gone, or is not scaled any more."""
        for metric in (self._desired, self._asked, self._changes):
            samples = [s.labels for family in metric.collect() for s in family.samples]
            for values in {tuple(labels.values()) for labels in samples}:
                if values[:2] == name:
                    metric.remove(*values)


def _steps(decision: Decision) -> list[tuple[str, str]]:
    """The ways in which the signals of load may change a service."""
    return [(direction, ask.signal) for direction in ("up", "down") for ask in decision.asks]
