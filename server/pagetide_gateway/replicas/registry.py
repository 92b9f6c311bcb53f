"""Which services exist, which replicas each has, and what is known about them.

Whoever knows the truth (the cluster, the local runner, the command line) sets the replicas level by level with `put`.
The health poller sets `health`; requests note how replicas do (`standing`) and when they were last heard of.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from ..routing.outlier import takes_part
from ..routing.prompt import Density
from ..routing.routers import ExpectedTime, Router
from .replica import Health, Replica

__all__ = ["ALL_BLOCKS", "Health", "Registry", "Replica", "Service", "Wake"]

# Blocks in the prefix indexes of all replicas together; about 130 bytes each.
ALL_BLOCKS = 1 << 20


Wake = Callable[[], Awaitable[object]]


@dataclasses.dataclass(eq=False)
class Service:
    """One model and the replicas that serve it.

    Attributes:
        key: unique here: `namespace/name` in a cluster.
        served: the model's name at its replicas.
        model: what clients call it: `served` where that is unique, else `key`.
        card: its entry in `/v1/models` as a replica last reported it.
        wake: asks for a replica; a service without it does not hold requests.
        broken: why it will have no replica until somebody changes it; empty where it may have one.
        held: requests that wait for a replica now.
    """

    key: str
    served: str = ""
    model: str = ""
    replicas: dict[str, Replica] = dataclasses.field(default_factory=dict)
    created: int = dataclasses.field(default_factory=lambda: int(time.time()))
    card: dict[str, Any] = dataclasses.field(default_factory=dict)
    router: Router = dataclasses.field(default_factory=ExpectedTime)
    density: Density = dataclasses.field(default_factory=Density)
    wake: Wake | None = None
    broken: str = ""
    woken_at: float = -math.inf
    held: int = 0

    def __post_init__(self) -> None:
        self.served = self.served or self.key
        self.model = self.model or self.served

    @property
    def is_empty(self) -> bool:
        """Has no replica but those that leave."""
        return all(r.draining for r in self.replicas.values())

    @property
    def holds(self) -> bool:
        """Whether requests without a replica wait for one: it comes with demand, and nothing keeps it from coming."""
        return self.wake is not None and not self.broken

    def available(self) -> list[Replica]:
        """Replicas that are ready and do not drain, in the order of their names."""
        return [r for r in self.replicas.values() if r.is_available]

    def candidates(self, now: float) -> list[Replica]:
        """Available replicas without those set aside for their failures, unless that would leave none."""
        available = self.available()
        return [r for r in available if takes_part(r.standing, now, r.in_flight)] or available

    def states(self) -> list[str]:
        """One line a replica, for people."""
        return [r.state for r in self.replicas.values()]

    def describe(self) -> dict[str, Any]:
        """Entry in `/v1/models`: what the replicas report (max_model_len, ...), under this service's own name."""
        known = {"object": "model", "created": self.created, "owned_by": "pagetide"}
        return {**known, **self.card, "id": self.model}


class Registry:
    """All services. `make_router` makes the router of each."""

    def __init__(self, make_router: Callable[[], Router] = ExpectedTime) -> None:
        self.services: dict[str, Service] = {}
        self._make_router = make_router
        self._by_served: dict[str, list[Service]] = {}
        self._leaving: dict[Replica, Service] = {}

    def put(
        self,
        key: str,
        replicas: Mapping[str, str],
        *,
        served: str = "",
        draining: Collection[str] | None = None,
        unready: Collection[str] = (),
        wake: Wake | None = None,
        broken: str = "",
    ) -> Service:
        """Make `replicas` (name -> url) those of a service; what is known about those that stay is kept.

        `served` is the model's name at the replicas (as `key`, if empty). `draining` names those that are to get
        nothing new; where it is None, that stays as it is. `unready` names those that somebody else, such as a kubelet,
        finds not ready. `broken`: why none will ever be ready.
        """
        service = self._service(key, served or key)
        service.wake, service.broken = wake, broken
        self._replace(service, replicas)
        self._share()
        for replica in service.replicas.values():
            replica.is_admitted = replica.name not in unready
            if draining is not None:
                replica.draining = replica.name in draining
        return service

    def _service(self, key: str, served: str) -> Service:
        """The service of this key, a new one where there is none that serves this model."""
        if (service := self.services.get(key)) is not None:
            if service.served == served:
                return service
            self._end(service)  # another model; nobody waits any longer for the one before
        service = self.services[key] = Service(key, served, router=self._make_router())
        self._rename()
        return service

    def _replace(self, service: Service, replicas: Mapping[str, str]) -> None:
        before = service.replicas
        service.replicas = {
            name: before[name] if name in before and before[name].url == url else Replica(name, url)
            for name, url in sorted((n, u.rstrip("/")) for n, u in replicas.items())
        }
        # One that has another address is another process, whose cache is empty.
        service.router.retain(name for name, replica in service.replicas.items() if replica is before.get(name))
        self._leave(service, [r for r in before.values() if service.replicas.get(r.name) is not r])

    def _leave(self, service: Service, replicas: Iterable[Replica]) -> None:
        """Look after those that are gone as long as they have requests."""
        for replica in replicas:
            replica.draining = True
            self._leaving[replica] = service

    def _end(self, service: Service) -> None:
        service.wake = None
        self._leave(service, service.replicas.values())

    def remove(self, key: str) -> None:
        """The service is gone; requests under way go on."""
        service = self.services.pop(key, None)
        if service is not None:
            self._end(service)
            self._rename()
            self._share()

    def _share(self) -> None:
        """Divide what all prefix indexes together may hold."""
        each = ALL_BLOCKS // max(1, sum(len(service.replicas) for service in self.services.values()))
        for service in self.services.values():
            service.router.limit(each)

    def _rename(self) -> None:
        counts = Counter(service.served for service in self.services.values())
        self._by_served = {}
        for service in self.services.values():
            self._by_served.setdefault(service.served, []).append(service)
            # A name that is another one's key means that one.
            is_free = self.services.get(service.served) in (None, service)
            service.model = service.served if counts[service.served] == 1 and is_free else service.key

    def find(self, model: str) -> Service | None:
        """The service that clients call `model`: by its key, else by the name it serves, if only one does."""
        named = self._by_served.get(model, ())
        return self.services.get(model) or (named[0] if len(named) == 1 else None)

    def keys_of(self, model: str) -> list[str]:
        """Keys of all services that serve a model of this name."""
        return [service.key for service in self._by_served.get(model, ())]

    def models(self) -> list[str]:
        """What clients call the services."""
        return [service.model for service in self.services.values()]

    def replicas(self) -> Iterator[tuple[Service, Replica]]:
        """Every replica with its service, and those that are gone and still have requests."""
        for service in list(self.services.values()):
            for replica in list(service.replicas.values()):
                yield service, replica
        self._leaving = {replica: service for replica, service in self._leaving.items() if replica.in_flight}
        for replica, service in list(self._leaving.items()):
            yield service, replica
