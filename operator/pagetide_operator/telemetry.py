"""The operator's own metrics and health over HTTP: `/metrics`, `/livez`, `/readyz`."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pagetide_spec.errors import SettingError
from pagetide_spec.metrics import PREFIX
from pagetide_spec.names import PATH_HEALTH, PATH_LIVE, PATH_METRICS, PATH_READY
from pagetide_spec.web import check_port

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
