"""kopf's part: watch the resource and its children, and say which service to reconcile. Nothing is decided here.

Only `on.event` handlers: kopf keeps no state in the objects for them, so it writes nothing at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import kopf
import kubernetes.client

from .cluster.client import authorization
from .cluster.kinds import BY_NAME, CHILD_SELECTOR, RESOURCE, Kind
from .cluster.store import Name, Store
from .work import WorkQueue

# A watch ends and restarts after so many seconds even if all is quiet: kopf's streams can die without a sign.
WATCH_SECONDS = 300
# Soon back after an outage, however long it was.
RETRY_SECONDS = (1, 2, 3)


# (kind, event): what becomes of a watch event.
Saw = Callable[[str, Mapping[str, Any]], object]


class Sight:
    """Takes watch events into the store and the queue, and counts them by kind for the watchdog."""

    def __init__(self, store: Store, queue: WorkQueue[tuple[str, str]]) -> None:
        self._store, self._queue = store, queue
        self.events: dict[str, int] = {}
        # By the monotonic clock.
        self.heard: dict[str, float] = {}

    def saw(self, kind: str, event: Mapping[str, Any]) -> set[Name]:
        """One event of kopf, whose `type` is None for objects listed at the start; returns the services it concerns."""
        self.events[kind] = self.events.get(kind, 0) + 1
        self.heard[kind] = time.monotonic()
        change = self._store.remove if event["type"] == "DELETED" else self._store.put
        services = change(kind, event["object"])
        for service in services:
            self._queue.add(service)
        return services


def registry_for(
    saw: Saw, versions: Mapping[str, str], configuration: kubernetes.client.Configuration
) -> kopf.OperatorRegistry:
    """kopf's handlers: one for each watched kind, and the login."""
    registry = kopf.OperatorRegistry()
    for name, version in versions.items():
        if BY_NAME[name].is_watched:
            _watch(registry, saw, BY_NAME[name], version)

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return connection_of(configuration)

    return registry


def _watch(registry: kopf.OperatorRegistry, saw: Saw, kind: Kind, version: str) -> None:
    @kopf.on.event(*_selector(kind, version), registry=registry, id=f"saw-{kind.plural}")
    async def handle(event: Any, **_: Any) -> None:
        saw(kind.name, {"type": event["type"], "object": dict(event["object"])})


def _selector(kind: Kind, version: str) -> tuple[str, str, str]:
    group, _, name = version.rpartition("/")
    return group, name, kind.plural


def settings_for(versions: Mapping[str, str]) -> kopf.OperatorSettings:
    """kopf's settings: no peering and no Events of its own; children by label; watches that end."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.networking.error_backoffs = RETRY_SECONDS
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 10
    for name, version in versions.items():
        if BY_NAME[name] is not RESOURCE:
            settings.watching.label_selectors[_selector(BY_NAME[name], version)] = CHILD_SELECTOR
    return settings


def connection_of(configuration: kubernetes.client.Configuration) -> kopf.ConnectionInfo:
    """The kubernetes client's identity in kopf's words; asked again when the server no longer takes it."""
    scheme, _, token = (authorization(configuration) or "").partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert or None,
        insecure=not configuration.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=configuration.cert_file or None,
        private_key_path=configuration.key_file or None,
    )
