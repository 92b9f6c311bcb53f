"""The hot path's front: which client, which service, what body; then it is for `attempts` to get an answer."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterator
from typing import Any

from pagetide_spec.names import HEADER_REQUEST_ID, HEADER_SESSION
from pagetide_spec.web import request_id_of

from ..access.keys import Key, KeyRing
from ..metrics import GatewayMetrics
from ..replicas.registry import Registry, Service
from ..replicas.upstream import outgoing_headers
from ..routing.prompt import Head, head_of, read, rewrite
from ..routing.routers import Prompt
from ..web.asgi import (
    BodyBudget,
    BodyShare,
    ClientGone,
    Receive,
    Scope,
    Send,
    has_body,
    header,
    read_body,
    run_until_gone,
    send_error,
)
from ..web.errors import KEY_LIMITS, ApiError, bad_request, internal_error, model_ambiguous, model_not_found
from .attempts import Attempts, Exchange
from .relay import StreamBroken

log = logging.getLogger(__name__)

DEFAULT_MAX_BODY = 32 << 20
# Of all requests together, until their answers begin.
DEFAULT_ALL_BODIES = 256 << 20
# Where a prompt is computed and cached, ours and vLLM's.
GENERATING_PATHS = frozenset(("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"))


@dataclasses.dataclass(frozen=True)
class Access:
    """The clients' keys (`keys` None: none required), and the key that replicas want, which replaces the client's."""

    keys: KeyRing | None = None
    upstream_key: str | None = None


OPEN = Access()


class RequestContext:
    """What is known of a request so far. `is_read`: all of it has come; `model`: empty until it is one that exists."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope, self.receive, self.send = scope, receive, send
        self.arrival = time.monotonic()
        self.request_id = request_id_of(header(scope["headers"], HEADER_REQUEST_ID.encode()))
        self.model = ""
        self.is_read = False
        self.exchange: Exchange | None = None


class Forwarder:
    """ASGI endpoint for every request that a replica answers."""

    def __init__(
        self,
        registry: Registry,
        attempts: Attempts,
        metrics: GatewayMetrics,
        access: Access,
        max_body: int,
        all_bodies: int = DEFAULT_ALL_BODIES,
    ) -> None:
        self._registry, self._attempts, self._metrics = registry, attempts, metrics
        self._access, self._max_body = access, max_body
        self._bodies = BodyBudget(max(all_bodies, max_body))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens to it."""
        context = RequestContext(scope, receive, send)
        try:
            with self._admit(scope, context.arrival) as key, BodyShare(self._bodies) as share:
                exchange = await self._prepare(context, key, share)
                await run_until_gone(self._attempts.answer(exchange), receive)
        except ApiError as error:
            await self._refuse(context, error)
        except ClientGone:
            self._metrics.client_gone(context.model)
        except StreamBroken as error:
            log.warning("%s: request %s broke off: %s", context.model, context.request_id, error)
        except Exception:
            log.exception("%s: request %s failed", context.model, context.request_id)
            if context.exchange is not None and context.exchange.is_answered:
                raise  # the server closes the connection, so that the client sees that the answer is not whole
            await self._refuse(context, internal_error())

    async def _refuse(self, context: RequestContext, error: ApiError) -> None:
        self._metrics.answered(context.model, error.status)
        if error.code in KEY_LIMITS:
            self._metrics.limited(error.code)
        headers = [(HEADER_REQUEST_ID.encode(), context.request_id.encode("latin-1"))]
        await send_error(context.send, error, headers, is_last=not context.is_read and has_body(context.scope))

    async def _prepare(self, context: RequestContext, key: Key | None, share: BodyShare) -> Exchange:
        """Read the request; the exchange alone has its body afterwards, and drops it when it is of no more use.

        Raises:
            ApiError: it cannot be sent to any replica.
            ClientGone: the client left before its request was whole.
        """
        body = await read_body(context.scope, context.receive, self._max_body, share)
        context.is_read = True
        head = head_of(body)
        service = self._service(head.model)
        context.model = service.model
        context.exchange = self._exchange(context, service, head, body, key, share)
        return context.exchange

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

    def _exchange(
        self, context: RequestContext, service: Service, head: Head, body: bytes, key: Key | None, share: BodyShare
    ) -> Exchange:
        generates = context.scope["path"] in GENERATING_PATHS
        salt = head.cache_salt if isinstance(head.cache_salt, str) else ""
        changes: dict[str, Any] = {}
        if head.model is not None and head.model != service.served:
            changes["model"] = service.served
        if generates and key is not None and key.cache_salt and isinstance(head.cache_salt, str | None):
            # The client's own divides what is the key's, and opens nothing that is another's.
            changes["cache_salt"] = salt = f"{key.cache_salt}/{salt}" if salt else key.cache_salt
        session = header(context.scope["headers"], HEADER_SESSION.encode())
        # Of what generates nothing, nothing is cached.
        prompt, size = read(head, salt, session, service.density) if generates else (Prompt(session=session), 0)
        return Exchange(
            service=service,
            prompt=prompt,
            prompt_bytes=size,
            target=_target(context.scope),
            headers=self._headers(context.scope, context.request_id),
            body=rewrite(body, changes) if changes else body,
            share=share,
            request_id=context.request_id,
            arrival=context.arrival,
            send=context.send,
        )

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
