"""The operator as a process: watches, workers, relist, leader election and health, started and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import signal
import socket
import threading
import uuid
from collections.abc import Coroutine, Mapping
from typing import Any, cast

import kopf
import kubernetes.client

from pagetide_spec.names import FIELD_MANAGER

from .. import act
from ..cluster.client import ApiError, Client, Fenced
from ..cluster.kinds import BY_NAME, OPTIONAL
from ..cluster.store import Store
from ..desired.children import Platform
from ..discovery import Discovery, OperatorError, patiently
from ..handlers import Sight, registry_for, settings_for
from ..reconcile import Reconciler
from ..scaler.actor import Scaler
from ..telemetry import Telemetry
from ..verdicts.capacity import Meter, metrics_of
from ..work import WorkQueue
from . import health
from .gauges import StoreGauges
from .leader import RENEW_DEADLINE, Leader
from .watchdog import Watchdog

logger = logging.getLogger(__name__)


# The watches begin some time after the first list; what happens between is seen by neither.
SECOND_LIST_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class Options:
    """How one operator runs.

    Attributes:
        namespaces: what it watches; none means the whole cluster.
        lease_namespace: where the Lease for leader election lies; None: no election.
        resync_seconds: between two lists of everything.
    """

    image: str
    namespaces: tuple[str, ...] = ()
    lease_namespace: str | None = None
    metrics_port: int = 0
    resync_seconds: float = 300.0
    surge_patience: float = Platform.surge_patience
    workers: int = 8


class Operator:
    """One running operator."""

    def __init__(self, configuration: kubernetes.client.Configuration, options: Options) -> None:
        self._configuration, self._options = configuration, options
        self._connection = Client(configuration)
        self._leader: Leader | None = None
        self._client = Fenced(self._connection, self._may_write)
        self._store = Store()
        self._queue: WorkQueue[tuple[str, str]] = WorkQueue()
        self._sight = Sight(self._store, self._queue)
        self._telemetry = Telemetry()
        self._telemetry.waiting.set_function(lambda: len(self._queue))
        self._telemetry.services.set_function(lambda: len(self._store.resources()))
        self._telemetry.registry.register(StoreGauges(self._store, self._sight.heard))
        self._watchdog = Watchdog(k.name for k in BY_NAME.values() if k.is_watched)
        self._meter = Meter(metrics_of, self._queue.add)
        self._scaler = Scaler(self._client, self._store, self._queue.add, self._telemetry)
        self._discovery = Discovery(self._client)
        self._synced = asyncio.Event()
        self.stop = asyncio.Event()

    async def run(self) -> None:
        """Run until `stop` is set or a signal comes.

        Raises:
            OperatorError: the CRD is missing, a watch has died, or the Lease is lost.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.stop.set)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._connection.close)
            server = await health.serve(self._telemetry.registry, self._options.metrics_port, self._synced.is_set)
            stack.push_async_callback(server.cleanup)
            names = ", ".join(self._options.namespaces)
            where = f"namespaces {names}" if names else "all namespaces"
            logger.info("watching InferenceServices in %s of %s", where, self._configuration.host)
            await self._until_stopped(self._run())

    async def _run(self) -> None:
        """All parts, from discovery on; the first that ends, ends all."""
        platform = await self._discovery.platform(self._options.image, self._options.surge_patience)
        reconciler = Reconciler(self._client, self._store, platform, self._meter, scaling=self._scaler.verdicts)
        self._reconciler = reconciler
        await self._until_stopped(self._watch(), self._relist_for_ever(), self._lead(reconciler), self._meter.run())

    async def _until_stopped(self, *parts: Coroutine[Any, Any, None]) -> None:
        """Run all parts; the first that ends, or `stop`, ends all. An error of a part is raised."""
        tasks = [asyncio.create_task(p) for p in (*parts, self._stopped())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _stopped(self) -> None:
        await self.stop.wait()

    async def _watch(self) -> None:
        """Run kopf in a thread of its own: at its end it cancels every task of its loop, ours would be among them."""
        loop = asyncio.get_running_loop()

        def saw(kind: str, event: Mapping[str, Any]) -> None:
            loop.call_soon_threadsafe(self._saw, kind, event)

        registry = registry_for(saw, self._discovery.versions, self._configuration)
        stop, names = threading.Event(), self._options.namespaces
        operator = kopf.operator(
            registry=registry,
            settings=settings_for(self._discovery.versions),
            standalone=True,
            identity=cast(Any, FIELD_MANAGER),  # else it asks for the name of a user, and images have none
            clusterwide=not names,
            namespaces=names,
            stop_flag=stop,
        )
        try:
            await asyncio.to_thread(asyncio.run, operator)
        finally:
            stop.set()
        raise OperatorError("the watches have ended")

    def _saw(self, kind: str, event: Mapping[str, Any]) -> None:
        """A watch event. A held request must not wait until a worker is free: the autoscaler hears of it at once."""
        for name in self._sight.saw(kind, event):
            self._scaler.noticed(name)

    async def _relist_for_ever(self) -> None:
        usual = self._options.resync_seconds
        for seconds in itertools.chain((0.0, min(SECOND_LIST_SECONDS, usual)), itertools.repeat(usual)):
            await asyncio.sleep(seconds)
            corrected = await self._relist()
            dead = self._watchdog.dead_watches(corrected, self._sight.events) if self._synced.is_set() else []
            if dead:
                raise OperatorError(f"the watch of {', '.join(dead)} has died; restarting")
            self._synced.set()
            for name in self._store.resources():
                self._queue.add(name)

    async def _relist(self) -> dict[str, int]:
        """List everything into the store; how many services it was wrong about, by kind."""
        self._reconciler.note(**await self._discovery.options())
        names: list[str | None] = list(self._options.namespaces) or [None]
        found = await patiently(lambda: act.every(self._client, self._discovery.versions, names))
        for kind in (k.name for k in OPTIONAL if k.name not in found):
            self._store.replace(kind, (), "")  # gone with their definition
        corrected = {}
        for kind, listing in found.items():
            wrong = self._store.replace(kind, listing.objects, listing.version)
            corrected[kind] = len(wrong)
            self._telemetry.corrections.labels(kind).inc(len(wrong) if self._synced.is_set() else 0)
            for name in wrong:
                self._queue.add(name)
        self._meter.forget_all_but({pod["metadata"]["uid"] for pod in found["Pod"].objects})
        return corrected

    async def _lead(self, reconciler: Reconciler) -> None:
        """Act, as long as this process is the leader."""
        if self._options.lease_namespace is None:
            await self._work(reconciler)
            return
        leader = self._leader = Leader(
            self._connection, self._options.lease_namespace, f"{socket.gethostname()}-{uuid.uuid4()}"
        )
        await leader.elected()
        try:
            await self._until_stopped(self._work(reconciler), self._watch_lease(leader))
        finally:
            with contextlib.suppress(ApiError, TimeoutError):  # it runs out by itself
                async with asyncio.timeout(RENEW_DEADLINE):
                    await leader.release()

    def _may_write(self) -> bool:
        return self._leader is None or self._leader.holds()

    async def _watch_lease(self, leader: Leader) -> None:
        await leader.lost()
        raise OperatorError("the Lease is lost; another operator acts")

    async def _work(self, reconciler: Reconciler) -> None:
        self._telemetry.is_leader.set(1)
        await self._synced.wait()  # what was not seen yet would be taken for missing
        workers = (self._worker(reconciler) for _ in range(self._options.workers))
        # Not `gather`: it would leave the others at work when one has failed, and the Lease is given back then.
        await self._until_stopped(self._scaler.run(), *workers)

    async def _worker(self, reconciler: Reconciler) -> None:
        while True:
            name = await self._queue.take()
            failed = True
            try:
                with self._telemetry.reconcile_seconds.time():
                    again = await reconciler.reconcile(name)
                failed = False
                if again is not None:
                    self._queue.add_later(name, again)
            except ApiError as error:
                logger.warning("%s/%s: %s", *name, error)
            except Exception:  # one bad resource must not stop the others
                logger.exception("%s/%s: unexpected error", *name)
            finally:
                self._queue.done(name, failed)
                self._telemetry.reconciles.labels("error" if failed else "ok").inc()
