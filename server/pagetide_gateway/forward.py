"""The hot path's front: who asks, for which service, with what body; then it is for `attempts` to get an answer."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterator
from typing import Any

from pagetide_spec.names import HEADER_REQUEST_ID, HEADER_SESSION
from pagetide_spec.web import request_id_of

from .asgi import ClientGone, Receive, Scope, Send, header, read_body, run_until_gone, send_error
from .attempts import Attempts, Exchange
from .errors import ApiError, bad_request, model_ambiguous, model_not_found
from .keys import Key, KeyRing
from .metrics import GatewayMetrics
from .prompt import Head, head_of, read, rewrite
from .registry import Registry, Service
from .relay import StreamBroken
from .upstream import outgoing_headers

log = logging.getLogger(__name__)

DEFAULT_MAX_BODY = 32 << 20
_SALTED_PATHS = frozenset(("/v1/completions", "/v1/chat/completions"))


@dataclasses.dataclass(frozen=True)
class Access:
    """Who may ask (`keys` None: everybody), and the key that replicas want, which replaces the client's."""

    keys: KeyRing | None = None
    upstream_key: str | None = None


OPEN = Access()


class Forwarder:
    """ASGI endpoint for every request that a replica answers."""

    def __init__(
        self, registry: Registry, attempts: Attempts, metrics: GatewayMetrics, access: Access, max_body: int
    ) -> None:
        self._registry, self._attempts, self._metrics = registry, attempts, metrics
        self._access, self._max_body = access, max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens to it."""
        arrival = time.monotonic()
        request_id = request_id_of(header(scope["headers"], HEADER_REQUEST_ID.encode()))
        service: Service | None = None
        try:
            with self._admit(scope, arrival) as key:
                body = await read_body(scope, receive, self._max_body)
                head = head_of(body)
                service = self._service(head.model)
                exchange = self._exchange(scope, service, head, body, key)
                exchange.request_id, exchange.arrival, exchange.send = request_id, arrival, send
                exchange.headers = self._headers(scope, request_id)
                await run_until_gone(self._attempts.answer(exchange), receive)
        except ApiError as error:
            self._metrics.answered(service.model if service else "", error.status)
            if error.status == 429:
                self._metrics.limited(error.code)
            await send_error(send, error, [(HEADER_REQUEST_ID.encode(), request_id.encode("latin-1"))])
        except ClientGone:
            self._metrics.client_gone(service.model if service else "")
        except StreamBroken as error:
            log.warning("%s: request %s broke off: %s", service.model if service else "", request_id, error)

    @contextlib.contextmanager
    def _admit(self, scope: Scope, now: float) -> Iterator[Key | None]:
        """The request's key, counted in as long as the context lasts; None where none is needed.

        Raises:
            ApiError: 401 or 429.
        """
        keys = self._access.keys
        if keys is None:
            yield None
            return
        key = keys.identify(header(scope["headers"], b"authorization"))
        with keys.use(key, now):
            yield key

    def _service(self, model: str | None) -> Service:
        """The service that a request means; one that names none means the only one there is."""
        services = self._registry.services
        if model is None:
            if len(services) == 1:
                return next(iter(services.values()))
            known = ", ".join(self._registry.models()) or "none"
            raise bad_request(f"`model` is missing. Models here: {known}", "model")
        service = self._registry.find(model)
        if service is None:
            raise unknown(self._registry, model)
        return service

    def _exchange(self, scope: Scope, service: Service, head: Head, body: bytes, key: Key | None) -> Exchange:
        salt = head.cache_salt if isinstance(head.cache_salt, str) else ""
        changes: dict[str, Any] = {}
        if head.model is not None and head.model != service.served:
            changes["model"] = service.served
        if key is not None and key.cache_salt and head.cache_salt is None and scope["path"] in _SALTED_PATHS:
            changes["cache_salt"] = salt = key.cache_salt
        session = header(scope["headers"], HEADER_SESSION.encode())
        prompt, size = read(head, salt, session, service.density)
        return Exchange(service, prompt, size, _target(scope), rewrite(body, changes) if changes else body)

    def _headers(self, scope: Scope, request_id: str) -> list[tuple[str, str]]:
        headers = outgoing_headers(scope["headers"], request_id)
        if self._access.keys is not None or self._access.upstream_key is not None:
            # The client's key is for this door only.
            headers = [(name, value) for name, value in headers if name != "authorization"]
        if self._access.upstream_key is not None:
            headers.append(("authorization", f"Bearer {self._access.upstream_key}"))
        return headers


def unknown(registry: Registry, model: str) -> ApiError:
    """404: no service is called so, or more than one."""
    keys = registry.keys_of(model)
    return model_ambiguous(model, keys) if keys else model_not_found(model, registry.models())


def _target(scope: Scope) -> str:
    target: str = scope["raw_path"].decode("latin-1")
    if scope["query_string"]:
        target += "?" + scope["query_string"].decode("latin-1")
    return target
