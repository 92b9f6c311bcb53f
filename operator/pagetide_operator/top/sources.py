"""Asks a server or a gateway for its figures over HTTP."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import aiohttp

from pagetide_spec.calls import describe_failed_call
from pagetide_spec.errors import PagetideError
from pagetide_spec.metrics import GATEWAY_METRICS
from pagetide_spec.names import PATH_METRICS, PATH_READY, PATH_SUMMARY
from pagetide_spec.web import whole_body

from .exposition import Change, Look, has_begun_anew, look
from .frame import Frame, Row, row_of
from .numbers import plain

TIMEOUT_S = 5.0
# What a fleet's figures never reach.
MOST_BYTES = 32 << 20
# The window over which rates and quantiles are computed.
WINDOW_S = 30.0
# Of what is wrong with a service; the rest is in its status.
_BROKEN_LENGTH = 100


class NoAnswer(PagetideError):
    """The target cannot be scraped, or refuses; it may be back later."""


class NotOurs(PagetideError):
    """The target is neither a server of ours nor a gateway."""


class Source(Protocol):
    """A target to watch."""

    async def frame(self) -> Frame:
        """What there is to see now.

        Raises:
            NoAnswer: nothing.
        """
        ...

    async def close(self) -> None:
        """Give all connections back."""
        ...


class History:
    """The scrapes of one server within the window. `change` is from the oldest of them to the newest."""

    def __init__(self) -> None:
        self._looks: deque[Look] = deque()

    def add(self, found: Look) -> Change:
        """Take in a scrape; those of an earlier process are dropped."""
        if self._looks and has_begun_anew(self._looks[-1], found):
            self._looks.clear()
        self._looks.append(found)
        while len(self._looks) > 2 and self._looks[1].at <= found.at - WINDOW_S:
            self._looks.popleft()
        return Change(self._looks[0], found)


@dataclasses.dataclass(frozen=True)
class Web:
    """Where to ask, and with which API key."""

    url: str
    session: aiohttp.ClientSession
    api_key: str = ""

    async def get(self, path: str) -> str:
        """The body of an answer.

        Raises:
            NoAnswer: with what was said in its place.
            NotOurs: there is no such thing.
        """
        status, text = await self._ask(path)
        if status == 401:
            problem = "does not accept this API key; give another" if self.api_key else "needs an API key"
            raise NoAnswer(f"{self.url}{path} {problem}: --api-key, or PAGETIDE_API_KEY")
        if status == 404:
            raise NotOurs(f"{self.url}{path}: not found; is this the address of a server or a gateway?")
        if status != 200:
            raise NoAnswer(f"{self.url}{path} answers {status}")
        return text

    async def state(self) -> str:
        """`ready`, or why a server is not, in its own words.

        Raises:
            NoAnswer: it says nothing.
        """
        status, text = await self._ask(PATH_READY)
        return f"unready: {plain(text.strip())}" if status == 503 else "ready"

    async def _ask(self, path: str) -> tuple[int, str]:
        """Status and body of an answer."""
        headers = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with self.session.get(self.url + path, headers=headers, timeout=timeout) as reply:
                return reply.status, (await whole_body(reply.content.iter_any(), MOST_BYTES)).decode()
        except TimeoutError:
            raise NoAnswer(f"{self.url} does not answer within {TIMEOUT_S:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NoAnswer(f"{self.url}{path}: {describe_failed_call(error)}") from None


async def source_at(web: Web) -> Source:
    """A server's or a gateway's source, as its metrics say which it is.

    Raises:
        NoAnswer: it says nothing.
        NotOurs: it is neither.
    """
    text = await web.get(PATH_METRICS)
    if GATEWAY_METRICS["gateway_requests_in_flight"].full_name in text:
        return GatewaySource(web)
    try:
        look(text, 0.0)
    except ValueError as error:
        raise NotOurs(f"{web.url}: {error}") from None
    return ServerSource(web)


class ServerSource:
    """One server."""

    def __init__(self, web: Web, clock: Callable[[], float] = time.monotonic) -> None:
        self._web, self._clock, self._history = web, clock, History()

    async def frame(self) -> Frame:
        """Everything about it."""
        text = await self._web.get(PATH_METRICS)
        try:
            change = self._history.add(look(text, self._clock()))
        except ValueError as error:
            raise NoAnswer(f"{self._web.url}: {error}") from None
        row = row_of("", self._web.url.partition("//")[2], await self._web.state(), change)
        return Frame(f"server {self._web.url}", [row], detail=change)

    async def close(self) -> None:
        """End its connections."""
        await self._web.session.close()


class GatewaySource:
    """One gateway: its services, and their replicas as it sees them."""

    def __init__(self, web: Web) -> None:
        self._web = web
        self._before: Mapping[str, Any] | None = None

    async def frame(self) -> Frame:
        """Services and replicas."""
        text = await self._web.get(PATH_SUMMARY)
        try:
            found = json.loads(text)
            out = gateway_frame(f"gateway {self._web.url}", found, self._before)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise NoAnswer(f"{self._web.url}{PATH_SUMMARY}: not understood: {error!r}") from None
        self._before = found
        return out

    async def close(self) -> None:
        """End its connections."""
        await self._web.session.close()


def gateway_frame(title: str, now: Mapping[str, Any], before: Mapping[str, Any] | None) -> Frame:
    """What a gateway's summary says, with what has changed since the one before."""
    known = {(s["key"], r["name"]): r for s in (before or {"services": ()})["services"] for r in s["replicas"]}
    seconds = now["time"] - before["time"] if before else 0.0
    rows = [
        gateway_row(service["model"], replica, known.get((service["key"], replica["name"])), seconds)
        for service in now["services"]
        for replica in service["replicas"]
    ]
    return Frame(title, rows, [service_line(service) for service in now["services"]])


def gateway_row(model: str, now: Mapping[str, Any], before: Mapping[str, Any] | None, seconds: float) -> Row:
    """One replica as a gateway sees it."""

    def grown(name: str) -> float | None:
        here, then = _number(now, name), _number(before or {}, name)
        return here - then if here is not None and then is not None and here >= then else None

    tokens, queries, hits = grown("generatedTokens"), grown("queryTokens"), grown("hitTokens")
    state = now["state"] + (f": {now['reason']}" if now.get("reason") else "")
    running, places = _number(now, "running"), _number(now, "maxRunning")
    return Row(
        plain(model),
        plain(now["name"]),
        plain(state),
        running=running,
        waiting=_number(now, "waiting"),
        batch=running / places if running is not None and places else None,
        kv=_number(now, "kvUsedRatio"),
        hits=hits / queries if queries and hits is not None else None,
        tokens=tokens / seconds if tokens is not None and seconds > 0 else None,
    )


def _number(told: Mapping[str, Any], name: str) -> float | None:
    value = told.get(name)
    if value is not None and not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}, not a number")
    return None if value is None else float(value)


def service_line(service: Mapping[str, Any]) -> str:
    """A service in one line: replicas, and what waits at the gateway."""
    ready = sum(r["state"] == "ready" for r in service["replicas"])
    in_flight = sum(r["inFlight"] for r in service["replicas"])
    held = f", {service['held']:d} held" if service["held"] else ""
    broken = f", cannot start: {plain(str(service['broken'])[:_BROKEN_LENGTH])}" if service.get("broken") else ""
    counts = f"{ready} of {len(service['replicas'])} ready, {in_flight} in flight"
    return f"{plain(service['model'])}: {counts}{held}{broken}"
