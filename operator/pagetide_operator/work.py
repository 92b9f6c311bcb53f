"""The queue of services to reconcile: each at most once, never two workers on one, later again after a failure."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

K = TypeVar("K")

FIRST_BACKOFF = 0.5
LAST_BACKOFF = 300.0


class WorkQueue(Generic[K]):
    """Keys that wait. Adding one that waits already changes nothing; one being worked on comes again afterwards."""

    def __init__(self) -> None:
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._waiting: set[K] = set()
        self._running: set[K] = set()
        self._again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: K) -> None:
        """`key` is to be reconciled."""
        if key in self._running:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_later(self, key: K, seconds: float) -> None:
        """`key` is to be reconciled in so many seconds; the earlier of two such times counts."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= at:
            return
        if timer is not None:
            timer.cancel()
        self._timers[key] = loop.call_at(at, self._due, key)

    async def take(self) -> K:
        """The next key; it must be given to `done`."""
        key = await self._ready.get()
        self._waiting.discard(key)
        self._running.add(key)
        return key

    def done(self, key: K, failed: bool) -> None:
        """The work on `key` is over; after a failure it comes again, each time later."""
        self._running.discard(key)
        if failed:
            count = self._failures[key] = self._failures.get(key, 0) + 1
            self.add_later(key, min(LAST_BACKOFF, FIRST_BACKOFF * 2 ** (count - 1)))
        else:
            self._failures.pop(key, None)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)
