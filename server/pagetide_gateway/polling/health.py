"""Asks every replica's `/readyz` and keeps `Replica.health` true; learns the model's card when one turns ready."""

from __future__ import annotations

import dataclasses
import logging
import weakref
from typing import Any, Literal

import aiohttp
import msgspec

from pagetide_spec.calls import describe_failed_call
from pagetide_spec.names import PATH_READY
from pagetide_spec.web import MOST_ANSWER_BYTES, whole_body

from ..replicas.registry import Health, Registry, Replica, Service
from ..replicas.upstream import Fault, fault_of
from .for_each import for_each_replica

log = logging.getLogger(__name__)

READY_INTERVAL_S = 1.0
UNREADY_INTERVAL_S = 0.25
TIMEOUT_S = 2.0
# A busy machine may answer late once or twice; a refused connection or a 503 counts at once.
MISSES_ALLOWED = 2
# One that is silent for so long will not answer the requests that it has, either.
MISSES_LOST = 5


@dataclasses.dataclass(frozen=True)
class Poll:
    """What came of one poll."""

    result: Literal["ready", "unready", "refused", "unreachable", "timeout", "unknown"]
    detail: str = ""


_RESULTS: dict[Fault, Literal["refused", "unreachable", "unknown"]] = {
    "process": "refused",
    "machine": "unreachable",
    "ours": "unknown",
}


def judge(health: Health, poll: Poll) -> Health:
    """A replica's health after one more poll."""
    if poll.result == "ready":
        return Health(ready=True, reason="")
    if poll.result in ("timeout", "unreachable", "unknown"):
        misses = health.misses + 1
        if poll.result == "unknown":  # no replica was polled, so none was silent
            misses = max(health.misses, min(misses, MISSES_ALLOWED + 1))
        if misses <= MISSES_ALLOWED:
            return dataclasses.replace(health, misses=misses)
        return Health(reason=poll.detail or f"no answer from {PATH_READY} within {TIMEOUT_S:g} s", misses=misses)
    return Health(reason=poll.detail, is_told=poll.result == "unready")


def is_lost(health: Health, poll: Poll) -> bool:
    """Whether to give up on the requests that a replica has, at its health after this poll.

    Not where it refuses the connection or says something: then its machine is there, which ends by itself the
    connections of a process that is not. Nor where the fault may be this gateway's own.
    """
    return poll.result in ("timeout", "unreachable") and health.misses >= MISSES_LOST


class HealthPoller:
    """Polls until cancelled.

    `key` is what replicas want to hear before they list their model; `tick_s` is how often it looks for replicas that
    are due.
    """

    def __init__(
        self, registry: Registry, session: aiohttp.ClientSession, key: str | None = None, tick_s: float = 0.05
    ) -> None:
        self._registry, self._session, self._tick_s = registry, session, tick_s
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        # Of each replica, whether it was ready when that was last logged.
        self._logged: weakref.WeakKeyDictionary[Replica, bool] = weakref.WeakKeyDictionary()

    async def run(self) -> None:
        """Until cancelled."""
        await for_each_replica(self._registry, self._once, self._tick_s)

    async def _once(self, service: Service, replica: Replica) -> float:
        self._note(service, replica, await self.poll(service, replica))
        return READY_INTERVAL_S if replica.health.ready else UNREADY_INTERVAL_S

    def _note(self, service: Service, replica: Replica, poll: Poll) -> None:
        """Judge by the health as it is now: a request may have found out more while the poll was under way."""
        health = judge(replica.health, poll)
        replica.health = health
        self._log(service, replica)
        if is_lost(health, poll):
            replica.lose(health.reason)

    def _log(self, service: Service, replica: Replica) -> None:
        """One line for the first verdict on a replica, and for each change; a warning where it should be ready."""
        health = replica.health
        if 0 < health.misses <= MISSES_ALLOWED or self._logged.get(replica) == health.ready:
            return
        self._logged[replica] = health.ready
        level = logging.WARNING if replica.is_admitted and not replica.draining else logging.INFO
        if health.ready:
            log.info("%s: %s (%s) is ready", service.model, replica.name, replica.url)
        else:
            log.log(level, "%s: %s (%s) is not ready: %s", service.model, replica.name, replica.url, health.reason)

    async def poll(self, service: Service, replica: Replica) -> Poll:
        """Ask once; of a replica that has just turned ready, also which model it serves."""
        try:
            async with self._session.get(
                replica.url + PATH_READY, timeout=self._timeout, allow_redirects=False
            ) as response:
                text = (await response.content.read(200)).decode("utf-8", "replace")
                if response.status == 503:
                    return Poll("unready", " ".join(text.split()) or f"{PATH_READY} says 503")
                if response.status != 200:
                    return Poll("unready", f"{PATH_READY} says {response.status}; is this a server of Pagetide?")
            if replica.health.ready:
                return Poll("ready")
            return await self._learn(service, replica)
        except TimeoutError:
            return Poll("timeout")
        except ValueError as error:
            return Poll("unready", f"its list of models: {error}")
        except (aiohttp.ClientError, OSError) as error:
            return Poll(_RESULTS[fault_of(error)], describe_failed_call(error))

    async def _learn(self, service: Service, replica: Replica) -> Poll:
        async with self._session.get(
            replica.url + "/v1/models", timeout=self._timeout, headers=self._headers, allow_redirects=False
        ) as response:
            if response.status != 200:
                # The list may need a key that nobody gave us.
                return Poll("ready")
            cards = cards_in(await whole_body(response.content.iter_any(), MOST_ANSWER_BYTES))
        if cards and service.served not in cards:
            return Poll("unready", f"serves {', '.join(cards)}, not {service.served}")
        service.card = cards.get(service.served, {})
        return Poll("ready")


def cards_in(body: bytes) -> dict[str, dict[str, Any]]:
    """Entries of a `/v1/models` answer by id; nothing where it has another form."""
    try:
        answer = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
    data = answer.get("data")
    entries = data if isinstance(data, list) else []
    return {str(entry["id"]): entry for entry in entries if isinstance(entry, dict) and "id" in entry}
