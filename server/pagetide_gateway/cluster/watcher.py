"""Keeps the registry as the cluster is: lists and watches InferenceServices and their pods, and wakes services.

An API server that is away changes nothing: the gateway goes on with what it knows, and its own health polls show which
replicas are still there.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

from pagetide_spec.names import ANNOTATION_WAKE, API_VERSION, LABEL_SERVICE, PLURAL

from ..replicas.registry import Registry
from .kube_api import KubeApi, KubeError
from .view import PodView, ServiceView, Wanted, pod_view, service_view, wanted

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0
# Events come in bursts; the registry is brought up to date once for all of them.
_SETTLE_S = 0.02
_GONE = 410


class Mirror:
    """The objects of one path, as `read` sees them (None: of no interest). Calls `changed` after each change."""

    def __init__(
        self,
        api: KubeApi,
        path: str,
        query: dict[str, str],
        read: Callable[[dict[str, Any]], Any],
        changed: Callable[[], object],
    ) -> None:
        self._api, self._path, self._query, self._read, self._changed = api, path, query, read, changed
        self.objects: dict[str, Any] = {}
        self.is_synced = False

    async def run(self) -> None:
        """List, watch for a while, list again; until cancelled."""
        pause = _FIRST_PAUSE_S
        while True:
            try:
                await self._follow(await self._list())
                pause = _FIRST_PAUSE_S
            except KubeError as error:
                if error.code != _GONE:  # 410: the watch was too far behind, which the next list mends
                    log.warning("%s: %s; going on with what is known", self._path, error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(_LONGEST_PAUSE_S, 2 * pause)

    async def _list(self) -> str:
        items, version = await self._api.list(self._path, self._query)
        views = {_key(item): self._read(item) for item in items}
        self.objects = {key: view for key, view in views.items() if view is not None}
        self.is_synced = True
        self._changed()
        return version

    async def _follow(self, version: str) -> None:
        """Take over events until the watch ends.

        Raises:
            KubeError: it broke off.
        """
        async for event in self._api.watch(self._path, self._query, version):
            item = event["object"]
            if event["type"] == "ERROR":
                raise KubeError(int(item.get("code", 0)), str(item.get("message", "")))
            if event["type"] == "BOOKMARK":
                continue
            view = None if event["type"] == "DELETED" else self._read(item)
            if view is None:
                self.objects.pop(_key(item), None)
            else:
                self.objects[_key(item)] = view
            self._changed()


def _key(item: dict[str, Any]) -> str:
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}"


class ClusterWatcher:
    """`run` until cancelled. `namespaces`: where to look; none: everywhere."""

    def __init__(self, api: KubeApi, registry: Registry, namespaces: Sequence[str] = ()) -> None:
        self._api, self._registry = api, registry
        self._changed = asyncio.Event()
        places = [f"/namespaces/{name}" for name in namespaces] or [""]
        self._services = [
            Mirror(api, f"/apis/{API_VERSION}{place}/{PLURAL}", {}, service_view, self._changed.set) for place in places
        ]
        selector = {"labelSelector": LABEL_SERVICE}
        self._pods = [Mirror(api, f"/api/v1{place}/pods", selector, pod_view, self._changed.set) for place in places]
        self._known: set[str] = set()

    @property
    def is_synced(self) -> bool:
        """All that there is has been seen once."""
        return all(mirror.is_synced for mirror in (*self._services, *self._pods))

    async def run(self) -> None:
        """Keep the registry true."""
        async with asyncio.TaskGroup() as tasks:
            for mirror in (*self._services, *self._pods):
                tasks.create_task(mirror.run())
            while True:
                await self._changed.wait()
                await asyncio.sleep(_SETTLE_S)
                self._changed.clear()
                if self.is_synced:
                    self._apply()

    def _apply(self) -> None:
        services: list[ServiceView] = [view for mirror in self._services for view in mirror.objects.values()]
        pods: list[PodView] = [view for mirror in self._pods for view in mirror.objects.values()]
        all_wanted = wanted(services, pods)
        for one in all_wanted:
            self._put(one)
        now = {one.service.key for one in all_wanted}
        for key in self._known - now:
            log.info("%s: removed", key)
            self._registry.remove(key)
        self._known = now

    def _put(self, one: Wanted) -> None:
        service = one.service
        self._registry.put(
            service.key,
            one.replicas,
            served=service.served,
            draining=one.draining,
            unready=one.unready,
            wake=self._waker(service) if service.may_wake else None,
            broken=one.broken,
        )

    def _waker(self, service: ServiceView) -> Callable[[], Any]:
        path = f"/apis/{API_VERSION}/namespaces/{service.namespace}/{PLURAL}/{service.name}"

        async def wake() -> None:
            time = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            await self._api.patch(path, {"metadata": {"annotations": {ANNOTATION_WAKE: time}}})

        return wake
