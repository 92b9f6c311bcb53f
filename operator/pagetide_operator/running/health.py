"""The operator's metrics and health over HTTP: `/metrics`, `/livez`, `/readyz`."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from pagetide_spec.errors import SettingError
from pagetide_spec.names import PATH_HEALTH, PATH_LIVE, PATH_METRICS, PATH_READY
from pagetide_spec.web import check_port


async def serve(registry: CollectorRegistry, port: int, is_synced: Callable[[], bool]) -> web.AppRunner:
    """Start to answer on `port`; the caller ends it with `cleanup()`. Ready once the whole cluster was listed.

    Raises:
        SettingError: there is no such port, or it is taken.
    """
    check_port(port, "--metrics-port")
    runner = web.AppRunner(_application(registry, is_synced), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, None, port).start()
    except OSError as error:
        await runner.cleanup()
        raise SettingError("--metrics-port", port, error.strerror or str(error)) from None
    return runner


def _application(registry: CollectorRegistry, is_synced: Callable[[], bool]) -> web.Application:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), content_type="text/plain")

    async def live(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        return web.Response(text="ok\n") if is_synced() else web.Response(status=503, text="not synced yet\n")

    app = web.Application()
    answers = {PATH_METRICS: metrics, PATH_LIVE: live, PATH_HEALTH: ready, PATH_READY: ready}
    app.add_routes([web.get(path, answer) for path, answer in answers.items()])
    return app
