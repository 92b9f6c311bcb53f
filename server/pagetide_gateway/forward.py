"""The hot path: read a request, choose a replica, pass the answer on.

A failed attempt goes to another replica only while the client has no byte of an answer. An attempt that may have begun
on a replica is repeated once and no more: the request itself may be what brought the replica down.
"""

from __future__ import annotations

import dataclasses
import logging
import time

import aiohttp
import msgspec

from pagetide_spec.names import HEADER_REQUEST_ID, HEADER_SESSION
from pagetide_spec.web import request_id_of

from .asgi import (
    ClientGone,
    Receive,
    Scope,
    Send,
    header,
    read_body,
    run_until_gone,
    send_error,
    send_whole,
)
from .errors import ApiError, bad_request, model_not_found, no_ready_replica, upstream_failed
from .metrics import GatewayMetrics
from .registry import Health, Registry, Replica, Service
from .relay import StreamBroken, read_small, relay
from .routing import Ask, Router
from .upstream import AttemptFailed, outgoing_headers, post, returned_headers

log = logging.getLogger(__name__)

DEFAULT_MAX_BODY = 32 << 20
_REPEATS_OF_BEGUN = 1


class _Head(msgspec.Struct):
    """The only field that the gateway reads; the decoder skips over the others without building them."""

    model: str | None = None


_decode_head = msgspec.json.Decoder(_Head).decode


@dataclasses.dataclass
class _Exchange:
    """One request on its way."""

    ask: Ask
    service: Service
    request_id: str
    headers: list[tuple[str, str]]
    arrival: float
    send: Send
    tried: list[Replica] = dataclasses.field(default_factory=list)
    begun: int = 0


class Forwarder:
    """ASGI endpoint for every request that a replica answers."""

    def __init__(
        self,
        registry: Registry,
        router: Router,
        session: aiohttp.ClientSession,
        metrics: GatewayMetrics,
        max_body: int = DEFAULT_MAX_BODY,
    ) -> None:
        self._registry, self._router, self._session = registry, router, session
        self._metrics, self._max_body = metrics, max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens to it."""
        arrival = time.monotonic()
        request_id = request_id_of(header(scope["headers"], HEADER_REQUEST_ID.encode()))
        service: Service | None = None
        try:
            body = await read_body(scope, receive, self._max_body)
            service = self._service(model_of(body))
            exchange = _Exchange(
                _ask(scope, service, body),
                service,
                request_id,
                outgoing_headers(scope["headers"], request_id),
                arrival,
                send,
            )
            await run_until_gone(self._answer(exchange), receive)
        except ApiError as error:
            self._metrics.answered(service.model if service else "", error.status)
            await send_error(send, error, [(HEADER_REQUEST_ID.encode(), request_id.encode("latin-1"))])
        except ClientGone:
            self._metrics.client_gone(service.model if service else "")
        except StreamBroken as error:
            log.warning("%s: request %s broke off: %s", service.model if service else "", request_id, error)

    def _service(self, model: str | None) -> Service:
        """The service that a request means; one that names none means the only one there is."""
        services = self._registry.services
        if model is None:
            if len(services) == 1:
                return next(iter(services.values()))
            raise bad_request(f"`model` is missing. Models here: {', '.join(services) or 'none'}", "model")
        service = self._registry.find(model)
        if service is None:
            raise model_not_found(model, services)
        return service

    async def _answer(self, exchange: _Exchange) -> None:
        """Try replicas until one answers.

        Raises:
            ApiError: none did.
            StreamBroken: one began and broke off.
        """
        refusal: ApiError | None = None
        while True:
            replica = self._choose(exchange, refusal)
            exchange.tried.append(replica)
            replica.in_flight += 1
            try:
                await self._attempt(exchange, replica)
                return
            except AttemptFailed as failure:
                refusal = self._failed(exchange, replica, failure)
            except _Refused as refused:
                refusal = refused.error
            finally:
                replica.in_flight -= 1

    def _choose(self, exchange: _Exchange, refusal: ApiError | None) -> Replica:
        candidates = [r for r in exchange.service.available() if r not in exchange.tried]
        if not candidates and exchange.begun and exchange.tried[-1].is_available:
            # It may only have closed an idle connection just as the request was sent on it.
            candidates = [exchange.tried[-1]]
        if exchange.begun > _REPEATS_OF_BEGUN or not candidates:
            states = (r.state for r in exchange.service.replicas.values())
            raise refusal or no_ready_replica(exchange.service.model, states)
        if exchange.tried:
            self._metrics.retried(exchange.service.model)
        return self._router.choose(exchange.ask, candidates)

    def _failed(self, exchange: _Exchange, replica: Replica, failure: AttemptFailed) -> ApiError:
        """Note a failed attempt; returns what the client is told if no other replica takes over."""
        model = exchange.service.model
        log.warning("%s: %s failed request %s: %s", model, replica.name, exchange.request_id, failure.why)
        if failure.may_have_begun:
            exchange.begun += 1
            return upstream_failed(replica.name, failure.why)
        # Nobody listens there: send it nothing more until a poll says otherwise.
        replica.health = Health(reason=failure.why)
        return no_ready_replica(model, [replica.state])

    async def _attempt(self, exchange: _Exchange, replica: Replica) -> None:
        """One exchange with one replica.

        Raises:
            AttemptFailed: no answer, and the client has no byte yet.
            _Refused: the replica takes no requests now.
            StreamBroken: it began and broke off.
        """
        target = exchange.ask.path
        response = await post(self._session, replica, target, exchange.headers, exchange.ask.body)
        try:
            with replica.exchange(response.close):
                body = await read_small(response)
            if response.status == 503:
                raise _Refused(no_ready_replica(exchange.service.model, [f"{replica.name} answers 503"]))
            self._metrics.first_byte(exchange.service.model, time.monotonic() - exchange.arrival)
            self._metrics.answered(exchange.service.model, response.status)
            headers = returned_headers(response, replica, exchange.request_id)
            if body is not None:
                await send_whole(exchange.send, response.status, headers, body)
            else:
                with replica.exchange(response.close):
                    await relay(response, replica, headers, exchange.send)
        except StreamBroken:
            self._metrics.broken(exchange.service.model)
            raise
        finally:
            # A response that was not read to its end takes its connection with it, which tells the replica to stop.
            response.release()


class _Refused(Exception):
    """The replica is loading or draining."""

    def __init__(self, error: ApiError) -> None:
        self.error = error
        super().__init__(error.message)


def model_of(body: bytes) -> str | None:
    """The `model` of a request's JSON.

    Raises:
        ApiError: 400: the body is not a JSON object, or `model` is not text.
    """
    try:
        return _decode_head(body).model
    except msgspec.ValidationError as error:
        if "$.model" in str(error):
            raise bad_request("`model` must be text", "model") from None
        raise bad_request("The request body must be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The request body is not JSON: {error}") from None


def _ask(scope: Scope, service: Service, body: bytes) -> Ask:
    target = scope["raw_path"].decode("latin-1")
    if scope["query_string"]:
        target += "?" + scope["query_string"].decode("latin-1")
    return Ask(service.model, target, body, header(scope["headers"], HEADER_SESSION.encode()))
