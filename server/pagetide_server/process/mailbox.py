"""What is asked of the engine, and where its outputs collect until they are taken: one wake-up for many tokens."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import TypeVar

from ..wire.columns import plain
from ..wire.messages import SamplingParams, SequenceOutput

Tapped = TypeVar("Tapped")


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

    Attributes:
        tap: sees an output first where the reader waits and no others are known to be behind it, which saves a task
            switch; what it returns True for is done.
        token_tap: the same for the token of a plain output (columns.py); what it refuses goes to `tap`.
    """

    __slots__ = ("_error", "_items", "_loop", "_waiter", "ids", "tap", "token_tap")

    def __init__(self, ids: list[str], loop: asyncio.AbstractEventLoop) -> None:
        self.ids = ids
        self.tap: Callable[[SequenceOutput], bool] | None = None
        self.token_tap: Callable[[int], bool] | None = None
        self._items: list[SequenceOutput] = []
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    def put(self, output: SequenceOutput, is_last: bool = False) -> None:
        """Add an output and wake the reader; after `fail` nothing is added, so that the error is reached.

        `is_last`: no more have arrived yet.
        """
        if self._error is not None:
            return
        if is_last and self.tap is not None and self._waiter is not None and self._tapped(self.tap, output):
            return
        self._items.append(output)
        self.wake()

    def put_plain(self, request_id: str, token_id: int, is_last: bool = False) -> None:
        """`put` for a plain output."""
        tap = self.token_tap
        if is_last and tap is not None and self._waiter is not None and self._tapped(tap, token_id):
            return
        self.put(plain(request_id, token_id), is_last)

    def fail(self, error: Exception) -> None:
        """Have the reader raise `error` once it has taken what is there."""
        self._error = error
        self.wake()

    def wake(self) -> None:
        """Have a reader that waits return, with what there is."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def take(self) -> list[SequenceOutput]:
        """All outputs since the last call; none only after `wake`.

        Raises:
            EngineDead: (or whatever `fail` was given) and nothing is left.
        """
        if not self._items and self._error is None:
            self._waiter = self._loop.create_future()
            await self._waiter
        if not self._items and self._error is not None:
            raise self._error
        items, self._items = self._items, []
        return items

    def _tapped(self, tap: Callable[[Tapped], bool], item: Tapped) -> bool:
        try:
            return tap(item)
        except Exception as error:  # noqa: BLE001 - it is the reader's, who waits for no one else's output
            self.fail(error)
            return True
