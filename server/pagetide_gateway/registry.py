"""Which services exist, which replicas each has, and what is known about them.

Whoever knows the truth (the cluster, the local runner, the command line) sets the replicas level by level with `put`.
The health poller sets `health`; requests note how replicas do (`standing`) and when they were last heard of.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any

from .outlier import GOOD, Standing, takes_part
from .prompt import Density
from .replica_load import Figures
from .routing import ExpectedTime, Router


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
    """One server process or pod.

    `url` has no trailing slash; `in_flight` counts requests sent and not yet answered, `streams` those that stream.
    `heard` is when it last showed a sign of work; `has_counters` whether its metrics show work that nobody here sees,
    `says_busy` whether they show any now.
    `figures` are what those metrics said last.
    """

    name: str
    url: str
    health: Health = Health()
    draining: bool = False
    is_admitted: bool = True
    in_flight: int = 0
    streams: int = 0
    why_lost: str = ""
    standing: Standing = GOOD
    heard: float = 0.0
    work: float = -1.0
    has_counters: bool = False
    says_busy: bool = False
    figures: Figures | None = None
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
        return self.health.ready and self.is_admitted and not self.draining

    @property
    def state(self) -> str:
        """One line for people."""
        if self.draining:
            return f"{self.name} draining"
        if self.health.ready and not self.is_admitted:
            return f"{self.name} not ready (its pod is not)"
        return f"{self.name} ready" if self.health.ready else f"{self.name} not ready ({self.health.reason})"


Wake = Callable[[], Awaitable[object]]


@dataclasses.dataclass(eq=False)
class Service:
    """One model and the replicas that serve it.

    Attributes:
        key: unique here: `namespace/name` in a cluster.
        served: the model's name at its replicas.
        model: what clients call it: `served` where that is unique, else `key`.
        card: its entry in `/v1/models` as a replica last told it.
        wake: asks for a replica; a service without it does not hold requests.
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
    woken_at: float = -math.inf
    held: int = 0

    def __post_init__(self) -> None:
        self.served = self.served or self.key
        self.model = self.model or self.served

    @property
    def is_empty(self) -> bool:
        """Has no replica but those that leave."""
        return all(r.draining for r in self.replicas.values())

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
        """Entry in `/v1/models`: what the replicas tell (max_model_len, ...), under this service's own name."""
        known = {"object": "model", "created": self.created, "owned_by": "pagetide"}
        return {**known, **self.card, "id": self.model}


class Registry:
    """All services. `make_router` makes the router of each."""

    def __init__(self, make_router: Callable[[], Router] = ExpectedTime) -> None:
        self.services: dict[str, Service] = {}
        self._make_router = make_router
        self._by_served: dict[str, list[Service]] = {}

    def put(
        self,
        key: str,
        replicas: Mapping[str, str],
        *,
        served: str = "",
        draining: Collection[str] | None = None,
        unready: Collection[str] = (),
        wake: Wake | None = None,
    ) -> Service:
        """Make `replicas` (name -> url) those of a service; what is known about those that stay is kept.

        `served` is the model's name at the replicas (as `key`, if empty). `draining` names those that are to get
        nothing new; where it is None, that stays as it is. `unready` names those that somebody else, such as a kubelet,
        finds not ready.
        """
        service = self.services.get(key)
        if service is not None and service.served != (served or key):
            service.wake = None  # another model; nobody waits any longer for the one before
            service = None
        if service is None:
            service = self.services[key] = Service(key, served, router=self._make_router())
            self._rename()
        service.wake = wake
        before = service.replicas
        service.replicas = {
            name: before[name] if name in before and before[name].url == url else Replica(name, url)
            for name, url in sorted((n, u.rstrip("/")) for n, u in replicas.items())
        }
        # One that has another address is another process, whose cache is empty.
        service.router.retain(name for name, replica in service.replicas.items() if replica is before.get(name))
        for replica in service.replicas.values():
            replica.is_admitted = replica.name not in unready
            if draining is not None:
                replica.draining = replica.name in draining
        return service

    def remove(self, key: str) -> None:
        """The service is gone; requests under way go on."""
        service = self.services.pop(key, None)
        if service is not None:
            service.wake = None
            self._rename()

    def _rename(self) -> None:
        counts = Counter(service.served for service in self.services.values())
        self._by_served = {}
        for service in self.services.values():
            self._by_served.setdefault(service.served, []).append(service)
            service.model = service.served if counts[service.served] == 1 else service.key

    def find(self, model: str) -> Service | None:
        """The service that clients call `model`: by the name it serves, if only one does, else by its key."""
        named = self._by_served.get(model, ())
        return named[0] if len(named) == 1 else self.services.get(model)

    def keys_of(self, model: str) -> list[str]:
        """Keys of all services that serve a model of this name."""
        return [service.key for service in self._by_served.get(model, ())]

    def models(self) -> list[str]:
        """What clients call the services."""
        return [service.model for service in self.services.values()]

    def replicas(self) -> Iterator[tuple[Service, Replica]]:
        """Every replica with its service."""
        for service in list(self.services.values()):
            for replica in list(service.replicas.values()):
                yield service, replica
