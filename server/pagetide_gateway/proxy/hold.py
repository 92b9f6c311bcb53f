"""Requests for a service that sleeps or wakes wait here, in bounded number and time."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable

from ..replicas.registry import Service, Wake
from ..web.errors import ApiError, held_too_long, no_ready_replica, too_many_held

log = logging.getLogger(__name__)

LOOK_S = 0.05
WAKE_INTERVAL_S = 5.0

_Waiting = set[asyncio.Future[None]]


@dataclasses.dataclass(frozen=True)
class HoldLimits:
    """At most `requests` of one service wait, each for `seconds`; their bodies together have at most `size` bytes."""

    requests: int = 256
    seconds: float = 120.0
    size: int = 256 << 20


DEFAULT_HOLD = HoldLimits()


class Holder:
    """Holds requests until their service has a replica, and asks for one where there is none.

    One task a service looks on behalf of all its requests, as long as there are any. `is_over` says when this process
    is about to end.
    """

    def __init__(self, limits: HoldLimits, is_over: Callable[[], bool]) -> None:
        self._limits, self._is_over = limits, is_over
        self._waiting: dict[Service, _Waiting] = {}
        self._tasks: dict[Service, asyncio.Task[None]] = {}
        self._size = 0

    async def wait(self, service: Service, since: float, size: int) -> None:
        """Return when the service has a replica that may be given a request.

        `since` is when the request came (`time.monotonic`), `size` that of its body in bytes.

        Raises:
            ApiError: 503: too many wait already, none came in time, or none will come.
        """
        if service.held >= self._limits.requests or self._size + size > self._limits.size:
            raise too_many_held(service.model)
        waiting = self._waiting.setdefault(service, set())
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.add(future)
        service.held += 1
        self._size += size
        if service not in self._tasks:
            self._tasks[service] = asyncio.create_task(self._attend(service, waiting))
        try:
            async with asyncio.timeout(since + self._limits.seconds - time.monotonic()):
                await future
        except TimeoutError:
            raise held_too_long(service.model, self._limits.seconds, service.states()) from None
        finally:
            waiting.discard(future)
            service.held -= 1
            self._size -= size

    async def _attend(self, service: Service, waiting: _Waiting) -> None:
        now = asyncio.get_running_loop().time
        waking: asyncio.Task[None] | None = None
        try:
            while waiting:
                if service.available():
                    _release(waiting)
                elif self._is_over() or service.wake is None or not service.holds:
                    _release(waiting, no_ready_replica(service.model, service.states(), service.broken))
                elif (
                    service.is_empty
                    and now() >= service.woken_at + WAKE_INTERVAL_S
                    and (waking is None or waking.done())
                ):
                    # In a task of its own: it may hang, and another gateway may have woken the service.
                    service.woken_at = now()
                    waking = asyncio.create_task(_wake(service, service.wake))
                await asyncio.sleep(LOOK_S)
        finally:
            if waking is not None:
                waking.cancel()
            del self._tasks[service], self._waiting[service]


def _release(waiting: _Waiting, error: ApiError | None = None) -> None:
    for future in waiting:
        if not future.done():
            future.set_exception(error) if error else future.set_result(None)


async def _wake(service: Service, wake: Wake) -> None:
    """Ask for a replica; what goes wrong is tried again after WAKE_INTERVAL_S."""
    log.info("%s: waking it for %d held requests", service.model, service.held)
    try:
        await wake()
    except Exception as error:  # noqa: BLE001 - whatever the owner's callback does, those held are looked after
        log.warning("%s: cannot be woken: %s", service.model, error)
