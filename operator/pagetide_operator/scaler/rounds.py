"""When services are scraped: all of them every few seconds, and one at once where that is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from ..cluster.store import Name
from ..work import WorkQueue

# Services that are scraped concurrently: a slow one blocks only its own slot.
LOOKERS = 64
# Slots for those that cannot wait for their turn.
URGENT_LOOKERS = 8


class Rounds:
    """`names` says which services there are; `look` scrapes one, and raises nothing."""

    def __init__(
        self, names: Callable[[], Iterable[Name]], look: Callable[[Name], Awaitable[None]], interval_s: float
    ) -> None:
        self._names, self._look, self._interval_s = names, look, interval_s
        self._due: WorkQueue[Name] = WorkQueue()
        self._urgent: WorkQueue[Name] = WorkQueue()

    def hurry(self, name: Name) -> None:
        """Scrape this service now; the usual round may do so meanwhile."""
        self._urgent.add(name)

    async def run(self) -> None:
        """Round after round, until cancelled. One that is still scraped when its turn comes is scraped again."""
        lookers = [self._looker(self._due) for _ in range(LOOKERS)]
        lookers += [self._looker(self._urgent) for _ in range(URGENT_LOOKERS)]
        await asyncio.gather(self._begin_for_ever(), *lookers)

    async def _begin_for_ever(self) -> None:
        while True:
            for name in self._names():
                self._due.add(name)
            await asyncio.sleep(self._interval_s)

    async def _looker(self, queue: WorkQueue[Name]) -> None:
        while True:
            name = await queue.take()
            try:
                await self._look(name)
            finally:
                queue.done(name, failed=False)
