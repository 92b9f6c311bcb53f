"""The operator's own metrics and health over HTTP: `/metrics`, `/livez`, `/readyz`."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pagetide_spec.errors import SettingError
from pagetide_spec.metrics import PREFIX
from pagetide_spec.names import PATH_HEALTH, PATH_LIVE, PATH_METRICS, PATH_READY
from pagetide_spec.web import check_port

from .autoscaling.policy import Decision

_PREFIX = PREFIX + "operator_"


class Telemetry:
    """Counters of one operator; each instance has its own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            _PREFIX + "reconciles", "Looks at a service, by outcome.", ["outcome"], registry=self.registry
        )
        self.reconcile_seconds = Histogram(
            _PREFIX + "reconcile_seconds", "Duration of one look at a service.", registry=self.registry
        )
        self.corrections = Counter(
            _PREFIX + "relist_corrections",
            "Services about which the watches had not told all.",
            ["kind"],
            registry=self.registry,
        )
        self.waiting = Gauge(_PREFIX + "queue_length", "Services that wait for a look.", registry=self.registry)
        self.services = Gauge(_PREFIX + "services", "InferenceServices that are known.", registry=self.registry)
        self.is_leader = Gauge(_PREFIX + "leader", "1 while this process acts.", registry=self.registry)
        self._add_scaling()

    def _add_scaling(self) -> None:
        service = ["namespace", "service"]
        self.scrapes = Counter(
            _PREFIX + "scrapes", "Looks at a replica's metrics, by outcome.", ["outcome"], registry=self.registry
        )
        self._changes = Counter(
            _PREFIX + "scale_changes",
            "Changes of a service's number of replicas, by direction and the signal that asked for the most.",
            [*service, "direction", "winner"],
            registry=self.registry,
        )
        self._desired = Gauge(
            _PREFIX + "desired_replicas", "Replicas that a scaled service should have.", service, registry=self.registry
        )
        self._asked = Gauge(
            _PREFIX + "asked_replicas",
            "Replicas that each signal of load asks for.",
            [*service, "signal"],
            registry=self.registry,
        )

    def scaling(self, name: tuple[str, str], decision: Decision, desired: int) -> None:
        """What was decided about a service."""
        self._desired.labels(*name).set(desired)
        for ask in decision.asks:
            self._asked.labels(*name, ask.signal).set(ask.replicas)

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


async def serve(telemetry: Telemetry, port: int, is_synced: Callable[[], bool]) -> web.AppRunner:
    """Start to answer on `port`; the caller ends it with `cleanup()`. Ready is who has seen the whole cluster once.

    Raises:
        SettingError: there is no such port, or it is taken.
    """
    check_port(port, "--metrics-port")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(telemetry.registry), content_type="text/plain")

    async def live(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        return web.Response(text="ok\n") if is_synced() else web.Response(status=503, text="not synced yet\n")

    app = web.Application()
    app.add_routes(
        [
            web.get(PATH_METRICS, metrics),
            web.get(PATH_LIVE, live),
            web.get(PATH_HEALTH, ready),
            web.get(PATH_READY, ready),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, None, port).start()
    except OSError as error:
        await runner.cleanup()
        raise SettingError("--metrics-port", port, error.strerror or str(error)) from None
    return runner
