"""The gateway's page at `/`, and what it shows as JSON at `/summary`: services, replicas, the last minutes. Read only.

`pagetide top` reads the same JSON. Where API keys are asked for, the JSON needs one; the page itself shows nothing.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import re
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from pagetide_spec.names import PATH_SUMMARY

from ..access.keys import KeyRing
from ..metrics import state_of
from ..replicas.registry import Registry, Replica, Service
from ..routing.replica_load import Figures

INTERVAL_S = 5.0
# Five minutes.
POINTS = 60


@dataclasses.dataclass(frozen=True)
class Point:
    """One service over one interval. Rates are per second; None: not known."""

    time: float
    in_flight: int
    held: int
    running: float | None
    waiting: float | None
    tokens: float | None
    hit_ratio: float | None


# Totals of one replica, as it last exported them.
Totals = dict[str, tuple[float | None, float | None, float | None]]


def totals_of(service: Service) -> Totals:
    """Generated, looked-up and found tokens of each replica with metrics."""
    told = {r.name: _figures(r) for r in service.replicas.values()}
    return {name: (f.generated_tokens, f.query_tokens, f.hit_tokens) for name, f in told.items() if f is not None}


def point_of(service: Service, before: Totals, now: Totals, seconds: float, at: float) -> Point:
    """What a service did between two scrapes. A replica that has begun again since counts from nothing."""
    generated, queries, hits = (_grown(before, now, index) for index in range(3))
    told = [f for r in service.replicas.values() if (f := _figures(r)) is not None]
    return Point(
        time=at,
        in_flight=sum(r.in_flight for r in service.replicas.values()),
        held=service.held,
        running=sum(f.running or 0.0 for f in told) if told else None,
        waiting=sum(f.waiting or 0.0 for f in told) if told else None,
        tokens=generated / seconds if told else None,
        hit_ratio=hits / queries if queries else None,
    )


def _figures(replica: Replica) -> Figures | None:
    """What a replica exports; nothing of one that does not answer now."""
    return replica.figures if replica.health.ready else None


def _grown(before: Totals, now: Totals, index: int) -> float:
    grown = 0.0
    for name, totals in now.items():
        then, here = before.get(name, (None,) * 3)[index], totals[index]
        if then is not None and here is not None:
            grown += here - then if here >= then else here
    return grown


class Page:
    """Remembers the last minutes of every service while `run` runs. `keys`: whose holders may see them (None: all)."""

    def __init__(
        self, registry: Registry, keys: KeyRing | None, interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._registry, self._keys, self._interval_s, self._clock = registry, keys, interval_s, clock
        self._history: dict[str, deque[Point]] = {}
        self._totals: dict[str, Totals] = {}
        self._at = clock()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            self.look()

    def look(self) -> None:
        """Take a point of every service; forget those that are gone."""
        now = self._clock()
        seconds, self._at = max(1e-3, now - self._at), now
        services = self._registry.services
        before, self._totals = self._totals, {key: totals_of(service) for key, service in services.items()}
        self._history = {key: self._history.get(key, deque(maxlen=POINTS)) for key in services}
        for key, service in services.items():
            self._history[key].append(point_of(service, before.get(key, {}), self._totals[key], seconds, now))

    def summary(self) -> dict[str, Any]:
        """What `/summary` says."""
        services = [self._service(key, service) for key, service in self._registry.services.items()]
        return {"time": self._clock(), "intervalSeconds": self._interval_s, "services": services}

    def _service(self, key: str, service: Service) -> dict[str, Any]:
        return {
            "key": key,
            "model": service.model,
            "held": service.held,
            "wakes": service.holds,
            "broken": service.broken,
            "replicas": [_replica(r) for r in service.replicas.values()],
            "history": [_camel(dataclasses.asdict(point)) for point in self._history.get(key, ())],
        }

    def routes(self) -> list[BaseRoute]:
        """The page and its data."""
        return [Route("/", self._show), Route(PATH_SUMMARY, self._tell)]

    async def _show(self, request: Request) -> Response:
        return HTMLResponse(_HTML, headers=_HEADERS)

    async def _tell(self, request: Request) -> Response:
        if self._keys is not None:
            self._keys.identify(request.headers.get("authorization"))
        return JSONResponse(self.summary(), headers={"cache-control": "no-store"})


def _replica(replica: Replica) -> dict[str, Any]:
    told = _figures(replica)
    return {
        "name": replica.name,
        "state": state_of(replica),
        "reason": "" if replica.health.ready else replica.health.reason,
        "inFlight": replica.in_flight,
        **({} if told is None else _camel(dataclasses.asdict(told))),
    }


def _camel(fields: dict[str, Any]) -> dict[str, Any]:
    return {re.sub(r"_(\w)", lambda found: found[1].upper(), name): value for name, value in fields.items()}


_HTML = Path(__file__).with_name("page.html").read_text("utf-8")


def _digest(tag: str) -> str:
    """The content of the page's only such element, as a content security policy names it."""
    content = re.search(rf"<{tag}>(.*?)</{tag}>", _HTML, re.DOTALL)
    if content is None:
        raise ValueError(f"page.html has no <{tag}>")
    return f"'sha256-{base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()}'"


# Nothing of another origin, and no script but ours: names and answers on the page come from elsewhere.
_POLICY = (
    f"default-src 'none'; connect-src 'self'; script-src {_digest('script')}; style-src {_digest('style')}; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
