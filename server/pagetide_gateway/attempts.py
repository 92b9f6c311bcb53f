"""One request at replicas, until one answers.

A failed attempt goes to another replica only while the client has no byte of an answer. An attempt that may have begun
on a replica is repeated once and no more: the request itself may be what brought the replica down.
"""

from __future__ import annotations

import dataclasses
import logging
import time

import aiohttp

from .asgi import Send, send_whole
from .errors import ApiError, no_ready_replica, upstream_failed
from .hold import Holder
from .metrics import GatewayMetrics
from .outlier import GOOD, after_failure
from .registry import Health, Replica, Service
from .relay import Heard, StreamBroken, read_small, relay
from .routing import Prompt, Ticket
from .upstream import AttemptFailed, post, returned_headers

log = logging.getLogger(__name__)

_REPEATS_OF_BEGUN = 1
# Answers that tell of a broken replica; a 503 is one that loads or drains, and says so itself.
_FAULTS = frozenset((500, 502, 504))


async def _nowhere(message: object) -> None:
    raise RuntimeError("the exchange has no client")


@dataclasses.dataclass
class Exchange:
    """One request on its way. `prompt_bytes`: 0 where they say nothing about the number of tokens."""

    service: Service
    prompt: Prompt
    prompt_bytes: int
    target: str
    body: bytes
    request_id: str = ""
    arrival: float = 0.0
    send: Send = _nowhere
    headers: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    tried: list[Replica] = dataclasses.field(default_factory=list)
    begun: int = 0
    was_full: bool = False


class Attempts:
    """Chooses, sends, passes the answer on, and notes what came of it."""

    def __init__(self, session: aiohttp.ClientSession, metrics: GatewayMetrics, holder: Holder) -> None:
        self._session, self._metrics, self._holder = session, metrics, holder

    async def answer(self, exchange: Exchange) -> None:
        """Try replicas until one answers.

        Raises:
            ApiError: none did.
            StreamBroken: one began and broke off.
        """
        refusal: ApiError | None = None
        while True:
            replica, ticket = await self._choose(exchange, refusal)
            exchange.tried.append(replica)
            try:
                with _counted(replica, exchange):
                    await self._attempt(exchange, replica, ticket)
                return
            except AttemptFailed as failure:
                refusal = self._failed(exchange, replica, failure)
            except _Refused as refused:
                refusal = refused.error
            except StreamBroken:
                self._metrics.broken(exchange.service.model)
                self._blame(exchange.service, replica)
                raise
            finally:
                exchange.service.router.end(ticket, time.monotonic())

    async def _choose(self, exchange: Exchange, refusal: ApiError | None) -> tuple[Replica, Ticket]:
        service = exchange.service
        candidates = self._candidates(exchange)
        while not candidates and not exchange.begun and service.wake is not None:
            await self._hold(exchange)
            candidates = self._candidates(exchange)
        if exchange.begun > _REPEATS_OF_BEGUN or not candidates:
            raise refusal or no_ready_replica(service.model, service.states())
        if exchange.tried:
            self._metrics.retried(service.model)
        now = time.monotonic()
        choice = service.router.choose(exchange.prompt, list(candidates), now)
        self._metrics.routed(service.model, choice.reason)
        return candidates[choice.replica], service.router.send(exchange.prompt, choice, now)

    async def _hold(self, exchange: Exchange) -> None:
        """Wait for a replica. Those that refused, as one does that leaves, must be found ready anew."""
        service = exchange.service
        for replica in exchange.tried:
            replica.health = Health(reason="takes no requests")
        exchange.tried.clear()
        try:
            await self._holder.wait(service, exchange.arrival, len(exchange.body))
        except ApiError as error:
            self._metrics.held(service.model, error.code)
            raise
        self._metrics.held(service.model, "released")

    def _candidates(self, exchange: Exchange) -> dict[str, Replica]:
        candidates = [r for r in exchange.service.candidates(time.monotonic()) if r not in exchange.tried]
        if not candidates:  # those set aside are better than none
            candidates = [r for r in exchange.service.available() if r not in exchange.tried]
        if not candidates and exchange.begun and exchange.tried[-1].is_available:
            # It may only have closed an idle connection just as the request was sent on it.
            candidates = [exchange.tried[-1]]
        return {replica.name: replica for replica in candidates}

    def _failed(self, exchange: Exchange, replica: Replica, failure: AttemptFailed) -> ApiError:
        """Note a failed attempt; returns what the client is told if no other replica takes over."""
        model = exchange.service.model
        log.warning("%s: %s failed request %s: %s", model, replica.name, exchange.request_id, failure.why)
        self._blame(exchange.service, replica)
        if failure.may_have_begun:
            exchange.begun += 1
            return upstream_failed(replica.name, failure.why)
        # Nobody listens there: send it nothing more until a poll says otherwise.
        replica.health = Health(reason=failure.why)
        return no_ready_replica(model, [replica.state])

    def _blame(self, service: Service, replica: Replica) -> None:
        before, replica.standing = replica.standing, after_failure(replica.standing, time.monotonic())
        if replica.standing.ejections > before.ejections:
            self._metrics.ejected(service.model)
            log.warning("%s: %s gets nothing for a while: it fails", service.model, replica.name)

    async def _attempt(self, exchange: Exchange, replica: Replica, ticket: Ticket) -> None:
        """One exchange with one replica.

        Raises:
            AttemptFailed: no answer, and the client has no byte yet.
            _Refused: the replica takes no requests now.
            StreamBroken: it began and broke off.
        """
        model = exchange.service.model
        response = await post(self._session, replica, exchange.target, exchange.headers, exchange.body)
        try:
            with replica.exchange(response.close):
                body = await read_small(response, replica)
            if response.status == 503 or (response.status == 429 and self._may_ask_another(exchange)):
                raise _Refused(no_ready_replica(model, [f"{replica.name} answers {response.status}"]))
            self._note(exchange, replica, response.status)
            headers = returned_headers(response, replica, exchange.request_id)
            if body is not None:
                exchange.service.density.learn(exchange.prompt_bytes, body)
                await send_whole(exchange.send, response.status, headers, body)
            else:
                await self._relay(exchange, replica, ticket, response, headers)
        finally:
            # A response that was not read to its end takes its connection with it, which tells the replica to stop.
            response.release()

    def _may_ask_another(self, exchange: Exchange) -> bool:
        """Once, where a replica's queue is full; the second one's word passes to the client."""
        is_first, exchange.was_full = not exchange.was_full, True
        return is_first and bool(self._candidates(exchange))

    def _note(self, exchange: Exchange, replica: Replica, status: int) -> None:
        model, now = exchange.service.model, time.monotonic()
        replica.heard = now
        self._metrics.first_byte(model, now - exchange.arrival)
        self._metrics.answered(model, status)
        if status in _FAULTS:
            self._blame(exchange.service, replica)
        elif replica.standing is not GOOD:
            replica.standing = GOOD

    async def _relay(
        self,
        exchange: Exchange,
        replica: Replica,
        ticket: Ticket,
        response: aiohttp.ClientResponse,
        headers: list[tuple[bytes, bytes]],
    ) -> None:
        heard = Heard(replica, lambda now: exchange.service.router.first_token(ticket, now))
        with replica.exchange(response.close):
            await relay(response, replica, headers, exchange.send, heard)
        exchange.service.density.learn(exchange.prompt_bytes, heard.tail)


class _counted:
    """Counts a request in at its replica."""

    def __init__(self, replica: Replica, exchange: Exchange) -> None:
        self._replica, self._streams = replica, int(exchange.prompt.is_streamed)

    def __enter__(self) -> None:
        replica = self._replica
        if not replica.in_flight:
            replica.heard = time.monotonic()
        replica.in_flight += 1
        replica.streams += self._streams

    def __exit__(self, *_: object) -> None:
        self._replica.in_flight -= 1
        self._replica.streams -= self._streams


class _Refused(Exception):
    """The replica is loading or draining."""

    def __init__(self, error: ApiError) -> None:
        self.error = error
        super().__init__(error.message)
