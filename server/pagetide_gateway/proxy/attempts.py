"""One request at replicas, until one answers.

A failed attempt goes to another replica only while the client has no byte of an answer. An attempt that may have begun
on a replica is repeated once and no more: the request itself may be what brought the replica down.
"""

from __future__ import annotations

import dataclasses
import logging
import time

import aiohttp

from ..metrics import GatewayMetrics
from ..replicas.registry import Health, Replica, Service
from ..replicas.upstream import AttemptFailed, post, returned_headers
from ..routing.outlier import GOOD, after_failure
from ..routing.routers import Prompt, Ticket
from ..web.asgi import BodyShare, Send, send_whole
from ..web.errors import ApiError, no_ready_replica, queue_full, upstream_failed
from .hold import Holder
from .relay import Answer, Heard, StreamBroken, relay

log = logging.getLogger(__name__)

_REPEATS_OF_BEGUN = 1
# Answers that show a broken replica; a 503 is one that loads or drains, and says so itself.
_FAULTS = frozenset((500, 502, 504))


@dataclasses.dataclass
class Exchange:
    """One request on its way.

    `prompt_bytes`: 0 where they say nothing about the number of tokens. `begun` counts attempts that a replica may have
    worked on; `was_closed`: the last one found its connection closed; `was_full`: one refused since its queue is full.
    """

    service: Service
    prompt: Prompt
    prompt_bytes: int
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    share: BodyShare
    request_id: str
    arrival: float
    send: Send
    tried: list[Replica] = dataclasses.field(default_factory=list)
    begun: int = 0
    was_closed: bool = False
    was_full: bool = False
    is_answered: bool = False

    def begin_answer(self) -> None:
        """The client is about to get the first byte: no other replica will be asked, and the body is dropped."""
        self.is_answered, self.body = True, b""
        self.share.give_back()


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
            status = 0
            try:
                with _counted(replica, exchange):
                    status = await self._attempt(exchange, replica, ticket)
                self._judge(exchange.service, replica, status)
                return
            except AttemptFailed as failure:
                refusal = self._failed(exchange, replica, failure)
            except _Refused as refused:
                exchange.was_full |= refused.status == 429
                refusal = self._refused(exchange.service, replica, refused.status, refusal)
            except StreamBroken:
                self._metrics.broken(exchange.service.model)
                self._blame(exchange.service, replica)
                raise
            finally:
                exchange.service.router.end(ticket, time.monotonic(), is_whole=0 < status < 400)

    async def _choose(self, exchange: Exchange, refusal: ApiError | None) -> tuple[Replica, Ticket]:
        service = exchange.service
        candidates = self._candidates(exchange)
        while not candidates and not exchange.begun and service.holds and not service.available():
            await self._hold(exchange)
            candidates = self._candidates(exchange)
        if exchange.begun > _REPEATS_OF_BEGUN or not candidates:
            raise refusal or no_ready_replica(service.model, service.states(), service.broken)
        if exchange.tried:
            self._metrics.retried(service.model)
        now = time.monotonic()
        choice = service.router.choose(exchange.prompt, list(candidates), now)
        self._metrics.routed(service.model, choice.reason)
        return candidates[choice.replica], service.router.send(exchange.prompt, choice, now)

    async def _hold(self, exchange: Exchange) -> None:
        """Wait for a replica; one that refused may be it, once it has been found ready again."""
        service = exchange.service
        exchange.tried.clear()
        try:
            await self._holder.wait(service, exchange.arrival, len(exchange.body))
        except ApiError as error:
            self._metrics.held(service.model, str(error.code))
            raise
        self._metrics.held(service.model, "released")

    def _candidates(self, exchange: Exchange) -> dict[str, Replica]:
        candidates = [r for r in exchange.service.candidates(time.monotonic()) if r not in exchange.tried]
        if not candidates:  # those set aside are better than none
            candidates = [r for r in exchange.service.available() if r not in exchange.tried]
        if not candidates and exchange.was_closed and exchange.tried[-1].is_available:
            # It may only have closed an idle connection just as the request was sent on it.
            candidates = [exchange.tried[-1]]
        return {replica.name: replica for replica in candidates}

    def _failed(self, exchange: Exchange, replica: Replica, failure: AttemptFailed) -> ApiError:
        """Note a failed attempt; returns the client's error if no other replica takes over."""
        model = exchange.service.model
        log.warning("%s: %s failed request %s: %s", model, replica.name, exchange.request_id, failure.why)
        exchange.was_closed = failure.was_closed
        if failure.is_ours:
            return no_ready_replica(model, [f"{replica.name} cannot be asked: {failure.why}"])
        self._blame(exchange.service, replica)
        if failure.may_have_begun:
            exchange.begun += 1
            return upstream_failed(replica.name, failure.why)
        # Nobody listens there: send it nothing more until a poll says otherwise.
        replica.health = Health(reason=failure.why)
        return no_ready_replica(model, [replica.state])

    def _refused(self, service: Service, replica: Replica, status: int, before: ApiError | None) -> ApiError:
        """Note a refusal; returns the client's error if no other replica takes over."""
        if status == 429:
            return queue_full(service.model, replica.name)
        # It loads or drains, until a poll says otherwise.
        replica.health = Health(reason="takes no requests")
        if before is not None and before.status == 429:
            return before
        return no_ready_replica(service.model, [f"{replica.name} answers 503"])

    def _blame(self, service: Service, replica: Replica) -> None:
        before, replica.standing = replica.standing, after_failure(replica.standing, time.monotonic())
        if replica.standing.ejections > before.ejections:
            self._metrics.ejected(service.model)
            log.warning("%s: %s gets nothing for a while: it fails", service.model, replica.name)

    def _judge(self, service: Service, replica: Replica, status: int) -> None:
        """Note how a whole answer speaks for its replica. A refusal says nothing about what computes there."""
        if status in _FAULTS:
            self._blame(service, replica)
        elif status < 400:
            replica.standing = GOOD

    async def _attempt(self, exchange: Exchange, replica: Replica, ticket: Ticket) -> int:
        """One exchange with one replica; returns the answer's status.

        Raises:
            AttemptFailed: no answer, and the client has no byte yet.
            _Refused: the replica takes no requests now.
            StreamBroken: it began and broke off.
        """
        response = await post(self._session, replica, exchange.target, exchange.headers, exchange.body)
        answer = Answer(response, replica)
        try:
            with replica.exchange(answer.lose):
                await self._pass_on(exchange, answer, ticket)
        finally:
            # A response that was not read to its end takes its connection with it, which makes the replica stop.
            response.release()
        return response.status

    async def _pass_on(self, exchange: Exchange, answer: Answer, ticket: Ticket) -> None:
        service, response, replica = exchange.service, answer.response, answer.replica
        body = await answer.read_small()
        if response.status == 503 or (response.status == 429 and self._has_another(exchange)):
            raise _Refused(response.status)
        first = b"" if body is not None else await answer.first_piece()
        self._note(exchange, replica, response.status)
        headers = returned_headers(response, replica, exchange.request_id)
        if body is not None:
            service.density.learn(exchange.prompt_bytes, body)
            await send_whole(exchange.send, response.status, headers, body)
            return
        heard = Heard(replica, lambda now: service.router.first_token(ticket, now))
        await relay(answer, first, headers, exchange.send, heard)
        service.density.learn(exchange.prompt_bytes, heard.tail)

    def _has_another(self, exchange: Exchange) -> bool:
        """Whether another is to be asked where a queue is full: once; the second one's word passes to the client."""
        return not exchange.was_full and bool(self._candidates(exchange))

    def _note(self, exchange: Exchange, replica: Replica, status: int) -> None:
        """The client is about to get the first byte."""
        exchange.begin_answer()
        model, now = exchange.service.model, time.monotonic()
        replica.heard = now
        self._metrics.first_byte(model, now - exchange.arrival)
        self._metrics.answered(model, status)


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
    """The replica takes no requests now (503), or its queue is full (429)."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(status)
