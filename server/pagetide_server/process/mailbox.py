"""What is asked of the engine, and where its outputs collect until they are taken: one wake-up for many tokens."""

from __future__ import annotations

import asyncio
import dataclasses

from ..wire.messages import SamplingParams, SequenceOutput


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt to continue."""

    token_ids: list[int]
    params: SamplingParams
    priority: int = 0
    cache_salt: str = ""


class Mailbox:
    """Outputs of the requests `ids`, in the order in which they came.

    While its reader is busy, outputs pile up here and are taken all at once: a slow reader costs fewer task switches
    instead of falling behind. Used by one reader, in one event loop.
    """

    __slots__ = ("_error", "_items", "_loop", "_waiter", "ids")

    def __init__(self, ids: list[str], loop: asyncio.AbstractEventLoop) -> None:
        self.ids = ids
        self._items: list[SequenceOutput] = []
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    def put(self, output: SequenceOutput) -> None:
        """Add an output and wake the reader; after `fail` nothing is added, so that the error is reached."""
        if self._error is not None:
            return
        self._items.append(output)
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """Have the reader raise `error` once it has taken what is there."""
        self._error = error
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def take(self) -> list[SequenceOutput]:
        """All outputs since the last call, at least one.

        Raises:
            EngineDead: (or whatever `fail` was given) and nothing is left.
        """
        while not self._items:
            if self._error is not None:
                raise self._error
            self._waiter = self._loop.create_future()
            await self._waiter
        items, self._items = self._items, []
        return items
