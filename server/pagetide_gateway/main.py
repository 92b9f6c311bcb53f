"""`pagetide gateway`: the gateway alone, over replicas given on the command line.

Watching the cluster for InferenceServices is not built yet; until then each service is a `--service` flag.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

import uvloop

from pagetide_spec.command_line import Parser
from pagetide_spec.errors import SettingError
from pagetide_spec.flags import seconds
from pagetide_spec.names import GATEWAY_PORT
from pagetide_spec.web import listen

from .app import Gateway
from .listen import GatewayServer
from .registry import Registry

log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Run until SIGTERM or SIGINT; 0 after a clean end, 2 for a wrong call."""
    args = parser().parse_args(argv)
    try:
        registry = registry_of(args.service)
        if args.max_body_mib < 1:
            raise SettingError("--max-body-mib", args.max_body_mib, "must be at least 1")
        listener = listen(args.host, args.port)
    except SettingError as error:
        print(f"pagetide gateway: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    gateway = Gateway(registry, max_body=args.max_body_mib << 20)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(GatewayServer(gateway, drain_s=args.drain_seconds), listener))
    return 0


async def _serve(server: GatewayServer, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    signals = 0

    def on_signal() -> None:
        nonlocal signals
        signals += 1
        # The second signal does not wait for anybody.
        server.stop(now=signals > 1)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    log.info("listening on http://%s:%d/v1", *listener.getsockname()[:2])
    await server.serve(sockets=[listener])


def registry_of(services: Sequence[str]) -> Registry:
    """A registry from `NAME=URL[,URL...]` texts.

    Raises:
        SettingError: a text has another form, or a name comes twice.
    """
    registry = Registry()
    for text in services:
        name, _, urls = text.partition("=")
        parts = [u for u in urls.split(",") if u]
        if not name or not parts or not all(_is_http(u) for u in parts):
            raise SettingError("--service", text, "must be NAME=http://HOST:PORT[,http://HOST:PORT...]")
        if registry.find(name):
            raise SettingError("--service", text, f"{name} is given twice; put all its URLs in one --service")
        registry.put(name, {f"{name}-{i}": url for i, url in enumerate(parts)})
    return registry


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def parser() -> Parser:
    """The command's flags."""
    out = Parser(
        "pagetide gateway",
        description="One OpenAI address for many services. Watching the cluster is not built yet: name them here.",
    )
    out.add_argument("--host", default="0.0.0.0", help="address to listen on (default: %(default)s)")
    out.add_argument("--port", type=int, default=GATEWAY_PORT, help="port; 0 takes a free one (default: %(default)s)")
    out.add_argument(
        "--service",
        action="append",
        default=[],
        metavar="NAME=URL[,URL...]",
        help="a model name and its replicas; may be given several times",
    )
    out.add_argument("--max-body-mib", type=int, default=32, help="largest request body in MiB (default: %(default)s)")
    out.add_argument(
        "--drain-seconds",
        type=seconds,
        default=30,
        help="time that running requests get at the end (default: %(default)s)",
    )
    out.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    return out
