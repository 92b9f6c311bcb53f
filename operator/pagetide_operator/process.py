"""The operator as a process: watches, workers, relist, leader election and health, started and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import logging
import signal
import socket
import threading
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import kopf
import kubernetes.client

from pagetide_spec.errors import PagetideError

from . import act, telemetry
from .autoscaling.actor import Scaler
from .capacity import Meter, metrics_of
from .client import ApiError, Client
from .desired import Platform
from .gauges import StoreGauges
from .handlers import Sight, registry_for, settings_for
from .kinds import BY_NAME, CHILDREN, OPTIONAL, RESOURCE
from .leader import RENEW_DEADLINE, Leader
from .reconcile import Reconciler
from .store import Store
from .watchdog import Watchdog
from .work import WorkQueue

T = TypeVar("T")
logger = logging.getLogger(__name__)


# The watches begin some time after the first list; what happens between is seen by neither.
SECOND_LIST_SECONDS = 10.0


class OperatorError(PagetideError):
    """The operator cannot run, or cannot go on; a restart may help."""


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
    surge_patience: float = 30.0
    workers: int = 8


class Operator:
    """One running operator."""

    def __init__(self, configuration: kubernetes.client.Configuration, options: Options) -> None:
        self._configuration, self._options = configuration, options
        self._client = Client(configuration)
        self._store = Store()
        self._queue: WorkQueue[tuple[str, str]] = WorkQueue()
        self._sight = Sight(self._store, self._queue)
        self._telemetry = telemetry.Telemetry()
        self._telemetry.waiting.set_function(lambda: len(self._queue))
        self._telemetry.services.set_function(lambda: len(self._store.resources()))
        self._telemetry.registry.register(StoreGauges(self._store, self._sight.heard))
        self._watchdog = Watchdog(k.name for k in BY_NAME.values() if k.is_watched)
        self._meter = Meter(metrics_of, self._queue.add)
        self._scaler = Scaler(self._client, self._store, self._queue.add, self._telemetry)
        self._versions: dict[str, str] = {}
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
            stack.push_async_callback(self._client.close)
            server = await telemetry.serve(self._telemetry, self._options.metrics_port, self._synced.is_set)
            stack.push_async_callback(server.cleanup)
            await self._until_stopped(self._run())

    async def _run(self) -> None:
        """All parts, from discovery on; the first that ends, ends all."""
        platform = await self._discover()
        reconciler = Reconciler(self._client, self._store, platform, self._meter, scaling=self._scaler.verdicts)
        await self._until_stopped(self._watch(), self._relist_for_ever(), self._lead(reconciler), self._meter.run())

    async def _discover(self) -> Platform:
        """Find out what this cluster has; waits for the API server as long as it takes."""
        for kind in (RESOURCE, *CHILDREN, *OPTIONAL):
            version = await self._patiently(functools.partial(act.discover, self._client, kind))
            if version is not None:
                self._versions[kind.name] = version
        if RESOURCE.name not in self._versions:
            raise OperatorError("the CustomResourceDefinition is not installed: pagetide crd | kubectl apply -f -")
        return Platform(
            image=self._options.image,
            budget_version=self._versions["PodDisruptionBudget"],
            has_service_monitors="ServiceMonitor" in self._versions,
            surge_patience=self._options.surge_patience,
        )

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of a request, tried again each second while the server does not answer."""
        while True:
            try:
                return await call()
            except ApiError as error:
                if not error.is_temporary and error.code < 500:
                    raise OperatorError(f"API server: {error}") from error
                logger.warning("%s; trying again", error)
                await asyncio.sleep(1)

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
            loop.call_soon_threadsafe(self._sight.saw, kind, event)

        registry = registry_for(saw, self._versions, self._configuration)
        stop, names = threading.Event(), self._options.namespaces
        operator = kopf.operator(
            registry=registry,
            settings=settings_for(self._versions),
            standalone=True,
            clusterwide=not names,
            namespaces=names,
            stop_flag=stop,
        )
        try:
            await asyncio.to_thread(asyncio.run, operator)
        finally:
            stop.set()
        raise OperatorError("the watches have ended")

    async def _relist_for_ever(self) -> None:
        usual = self._options.resync_seconds
        for seconds in itertools.chain((0.0, min(SECOND_LIST_SECONDS, usual)), itertools.repeat(usual)):
            await asyncio.sleep(seconds)
            corrected = await self._relist()
            dead = self._watchdog.dead_watches(corrected, self._sight.events) if self._synced.is_set() else []
            if dead:
                raise OperatorError(f"the watch of {', '.join(dead)} has died; starting anew")
            self._synced.set()
            for name in self._store.resources():
                self._queue.add(name)

    async def _relist(self) -> dict[str, int]:
        """List everything into the store; how many services it was wrong about, by kind."""
        names: list[str | None] = list(self._options.namespaces) or [None]
        found = await self._patiently(lambda: act.every(self._client, self._versions, names))
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
        leader = Leader(self._client, self._options.lease_namespace, f"{socket.gethostname()}-{uuid.uuid4()}")
        await leader.elected()
        try:
            await self._until_stopped(self._work(reconciler), self._watch_lease(leader))
        finally:
            with contextlib.suppress(ApiError, TimeoutError):  # it runs out by itself
                async with asyncio.timeout(RENEW_DEADLINE):
                    await leader.release()

    async def _watch_lease(self, leader: Leader) -> None:
        await leader.lost()
        raise OperatorError("the Lease is lost; another operator acts")

    async def _work(self, reconciler: Reconciler) -> None:
        self._telemetry.is_leader.set(1)
        await self._synced.wait()  # what was not seen yet would be taken for missing
        workers = (self._worker(reconciler) for _ in range(self._options.workers))
        await asyncio.gather(self._scaler.run(), *workers)

    async def _worker(self, reconciler: Reconciler) -> None:
        while True:
            name = await self._queue.take()
            failed = True
            try:
                self._scaler.noticed(name)
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
