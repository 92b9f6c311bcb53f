"""What the gateway counts about itself; names come from `pagetide_spec.metrics`."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pagetide_spec.metrics import GATEWAY_METRICS, Metric

from .replicas.registry import Registry, Replica
from .routing.routers import REASONS
from .web.errors import KEY_LIMITS

MODEL = "model_name"
# How holding ends: a replica came, none came, or too many waited already.
HELD_OUTCOMES = ("released", "no_ready_replica", "too_many_held")
FAULTS = (500, 502, 503)


class GatewayMetrics:
    """Counters of the hot path, and gauges that are read from the registry when they are asked for."""

    def __init__(self, registry: Registry) -> None:
        self._registry, self._prometheus = registry, CollectorRegistry()
        self._requests = self._counter("gateway_requests_total")
        self._retries = self._counter("gateway_retries_total")
        self._broken = self._counter("gateway_broken_streams_total")
        self._gone = self._counter("gateway_client_disconnects_total")
        self._routed = self._counter("gateway_routed_total")
        self._held = self._counter("gateway_held_total")
        self._limited = self._counter("gateway_limited_total")
        self._ejections = self._counter("gateway_ejections_total")
        spec = GATEWAY_METRICS["gateway_first_byte_seconds"]
        self._first_byte = Histogram(
            spec.full_name, spec.help, [MODEL], buckets=spec.buckets, registry=self._prometheus
        )
        self._prometheus.register(_RegistryGauges(registry))
        # `labels()` takes a lock and builds a tuple; the few children there are stay at hand.
        self._answered_child = functools.lru_cache(maxsize=1024)(self._requests.labels)
        self._routed_child = functools.lru_cache(maxsize=1024)(self._routed.labels)
        self._first_byte_child = functools.lru_cache(maxsize=1024)(self._first_byte.labels)

    def _counter(self, name: str) -> Counter:
        spec = GATEWAY_METRICS[name]
        return Counter(spec.full_name, spec.help, [MODEL, *spec.labels], registry=self._prometheus)

    def answered(self, model: str, status: int) -> None:
        """A request has its status; `model` is empty when it names none that exists."""
        self._answered_child(model, str(status)).inc()

    def retried(self, model: str) -> None:
        """An attempt failed before the first byte."""
        self._retries.labels(model).inc()

    def broken(self, model: str) -> None:
        """A replica broke off after the first byte."""
        self._broken.labels(model).inc()

    def client_gone(self, model: str) -> None:
        """A client left before its answer was complete."""
        self._gone.labels(model).inc()

    def routed(self, model: str, reason: str) -> None:
        """A replica was chosen."""
        self._routed_child(model, reason).inc()

    def held(self, model: str, outcome: str) -> None:
        """A request waits no longer."""
        self._held.labels(model, outcome).inc()

    def limited(self, limit: str) -> None:
        """A request was over a limit of its key."""
        self._limited.labels("", limit).inc()

    def ejected(self, model: str) -> None:
        """A replica is set aside."""
        self._ejections.labels(model).inc()

    def first_byte(self, model: str, seconds: float) -> None:
        """A replica's answer began so long after the request's arrival."""
        self._first_byte_child(model).observe(seconds)

    def render(self) -> bytes:
        """The exposition text."""
        self._begin()
        return generate_latest(self._prometheus)

    def _begin(self) -> None:
        """Let every counter of a model be there from the start, so that a first failure is a rise."""
        for model in self._registry.models():
            for counter in (self._retries, self._broken, self._gone, self._ejections):
                counter.labels(model)
            for status in FAULTS:
                self._answered_child(model, str(status))
            for reason in REASONS:
                self._routed_child(model, reason)
            for outcome in HELD_OUTCOMES:
                self._held.labels(model, outcome)
        for limit in KEY_LIMITS:
            self._limited.labels("", limit)


class _RegistryGauges(Collector):
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Any]:
        flight, states = _gauge("gateway_requests_in_flight"), _gauge("gateway_replicas")
        held, each = _gauge("gateway_requests_held"), _gauge("gateway_replica_requests_in_flight")
        at_replicas: collections.Counter[tuple[str, str]] = collections.Counter()
        for service, replica in self._registry.replicas():  # one that is gone may have had the name of one that is here
            at_replicas[service.model, replica.name] += replica.in_flight
        at_services: collections.Counter[str] = collections.Counter(
            {s.model: 0 for s in self._registry.services.values()}
        )
        for (model, name), count in at_replicas.items():
            each.add_metric([model, name], count)
            at_services[model] += count
        for model, count in at_services.items():
            flight.add_metric([model], count)
        for service in self._registry.services.values():
            replicas = list(service.replicas.values())
            held.add_metric([service.model], service.held)
            for state in ("ready", "draining", "ejected", "unready"):
                states.add_metric([service.model, state], sum(state_of(r) == state for r in replicas))
        return held, each, flight, states


def _gauge(name: str) -> GaugeMetricFamily:
    spec: Metric = GATEWAY_METRICS[name]
    return GaugeMetricFamily(spec.full_name, spec.help, labels=[MODEL, *spec.labels])


def state_of(replica: Replica) -> str:
    """One of ready, draining, ejected, unready."""
    if replica.draining:
        return "draining"
    if not replica.is_available:
        return "unready"
    return "ejected" if replica.standing.ejections else "ready"
