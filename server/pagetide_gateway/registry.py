"""Which services exist, which replicas each has, and what is known about them.

Whoever knows the truth (the cluster, the local runner, the command line) sets the replicas level by level with `put`.
The health poller sets `health`, and so does a request that finds nobody listening.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Health:
    """What the last polls of `/readyz` said.

    `reason` tells why a replica is not ready; where `is_told` it is in the replica's own words.
    """

    ready: bool = False
    reason: str = "starting"
    is_told: bool = False
    # Polls in a row that got no answer in time.
    misses: int = 0


@dataclasses.dataclass(eq=False)
class Replica:
    """One server process or pod. `url` has no trailing slash; `in_flight` counts requests sent and not yet answered."""

    name: str
    url: str
    health: Health = Health()
    draining: bool = False
    in_flight: int = 0
    why_lost: str = ""
    _ends: set[Callable[[], object]] = dataclasses.field(default_factory=set)

    @contextlib.contextmanager
    def exchange(self, end: Callable[[], object]) -> Iterator[None]:
        """Within this context, `lose` calls `end`."""
        self._ends.add(end)
        try:
            yield
        finally:
            self._ends.discard(end)

    def lose(self, why: str) -> None:
        """Give up on all that is under way with this replica, so that its clients need not wait any longer."""
        self.why_lost = why
        for end in list(self._ends):
            end()

    @property
    def is_available(self) -> bool:
        """May be given a new request."""
        return self.health.ready and not self.draining

    @property
    def state(self) -> str:
        """One line for people."""
        if self.draining:
            return f"{self.name} draining"
        return f"{self.name} ready" if self.health.ready else f"{self.name} not ready ({self.health.reason})"


@dataclasses.dataclass(eq=False)
class Service:
    """One model name and the replicas that serve it. `card` is its entry in `/v1/models` as a replica last told it."""

    model: str
    replicas: dict[str, Replica] = dataclasses.field(default_factory=dict)
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))
    card: dict[str, Any] = dataclasses.field(default_factory=dict)

    def available(self) -> list[Replica]:
        """Replicas that may be given a new request, in the order of their names."""
        return [r for r in self.replicas.values() if r.is_available]

    def describe(self) -> dict[str, Any]:
        """Entry in `/v1/models`: what the replicas tell (max_model_len, ...), under this service's own name."""
        known = {"object": "model", "created": self.created, "owned_by": "pagetide"}
        return {**known, **self.card, "id": self.model}


class Registry:
    """All services by the name that clients give as `model`."""

    def __init__(self) -> None:
        self.services: dict[str, Service] = {}

    def put(self, model: str, replicas: Mapping[str, str]) -> Service:
        """Make `replicas` (name -> url) those of `model`; what is known about those that stay is kept."""
        service = self.services.setdefault(model, Service(model))
        before = service.replicas
        service.replicas = {
            name: before[name] if name in before and before[name].url == url else Replica(name, url)
            for name, url in sorted((n, u.rstrip("/")) for n, u in replicas.items())
        }
        return service

    def find(self, model: str) -> Service | None:
        """The service that clients call `model`."""
        return self.services.get(model)

    def replicas(self) -> Iterator[tuple[Service, Replica]]:
        """Every replica with its service."""
        for service in list(self.services.values()):
            for replica in list(service.replicas.values()):
                yield service, replica
