"""`pagetide gateway`: the front door of a cluster, or of replicas given on the command line."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

import uvloop

from pagetide_spec.errors import SettingError
from pagetide_spec.logs import set_up_logging
from pagetide_spec.web import listen

from .access.key_file import keep_fresh, read_keys
from .access.keys import Key, KeyRing
from .cluster.kube_api import KubeApi
from .cluster.kube_config import KubeConfig, load
from .cluster.watcher import ClusterWatcher
from .options import ROUTERS, parser, registry_of
from .proxy.forward import Access
from .proxy.hold import HoldLimits
from .serving.app import Gateway
from .serving.server import GatewayServer

log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Run until SIGTERM or SIGINT; 0 after a clean end, 2 for a wrong call."""
    args = parser().parse_args(argv)
    try:
        listener = listen(args.host, args.port)
        try:
            run = _Run(args)
        except SettingError:
            listener.close()
            raise
    except SettingError as error:
        print(f"pagetide gateway: {error}", file=sys.stderr)
        return 2
    set_up_logging(args.log_level, args.log_format)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run.serve(listener))
    return 0


class _Run:
    """One run of the command.

    Raises:
        SettingError: a flag, the keys or the kubeconfig is wrong.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._registry = registry_of(args.service, ROUTERS[args.routing])
        self._keys: list[Key] | None = read_keys(args.api_keys) if args.api_keys else None
        self._access = Access(
            None if self._keys is None else KeyRing(self._keys),
            _only_word(args.upstream_api_key_file) if args.upstream_api_key_file else None,
        )
        # Whoever names replicas and no namespace wants these replicas and no cluster.
        wants_cluster = bool(args.namespace) or not args.service
        self._cluster: KubeConfig | None = load(os.environ) if wants_cluster else None

    async def serve(self, listener: socket.socket) -> None:
        """Until a signal comes and what is under way is answered."""
        async with contextlib.AsyncExitStack() as stack:
            watcher = await stack.enter_async_context(self._watching()) if self._cluster else None
            if self._keys is not None and self._access.keys is not None:
                await stack.enter_async_context(
                    _background(keep_fresh(self._access.keys, self._args.api_keys, self._keys))
                )
            gateway = Gateway(
                self._registry,
                max_body=self._args.max_body_mib << 20,
                access=self._access,
                hold=HoldLimits(self._args.hold_requests, self._args.hold_seconds),
                stall_s=self._args.stall_seconds,
                is_synced=lambda: watcher is None or watcher.is_synced,
            )
            await _serve(GatewayServer(gateway, drain_s=self._args.drain_seconds), listener)

    @contextlib.asynccontextmanager
    async def _watching(self) -> AsyncIterator[ClusterWatcher]:
        assert self._cluster is not None  # asked before
        log.info("watching %s, by %s", self._cluster.server, self._cluster.source)
        api = KubeApi(self._cluster)
        watcher = ClusterWatcher(api, self._registry, self._args.namespace)
        try:
            async with _background(watcher.run()):
                yield watcher
        finally:
            await api.close()


@contextlib.asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `work` within the context; its failure exits the process, rather than leaving a stale gateway."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work)
        yield
        task.cancel()


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


def _only_word(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8-sig").split()  # some editors begin a file with a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot be read: {getattr(error, 'strerror', '') or error}"
        raise SettingError("--upstream-api-key-file", str(path), problem) from None
    if len(lines) != 1:
        raise SettingError("--upstream-api-key-file", str(path), "must hold one key and nothing else")
    return lines[0]
