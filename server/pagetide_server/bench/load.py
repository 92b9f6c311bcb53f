"""Keeping the time: sends requests in a closed or an open loop and collects their outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from .figures import CUT_OFF, Outcome
from .shapes import Shape

Send = Callable[[bytes, Outcome], Awaitable[None]]
REFUSED = ConnectionRefusedError.__name__
# For so long every connection is refused until the server is taken to be gone, and so often a closed loop tries.
GONE_SECONDS, RETRY_SECONDS = 5.0, 0.1


class Load:
    """The requests of one run, as far as they have come.

    Args:
        send: sends a body and fills its outcome.
        make: a request's body.
        stop: set, it ends the run: nothing more is sent, and what is open is cut off.

    Attributes:
        outcomes: of all requests whose time has come, in that order.
        open: those of them that have not ended, by their numbers.
        failed, events: how many of the ended ones failed, and how many events they brought.
        server_is_gone: the run was ended, because nobody listens at the server's address any more.
    """

    def __init__(self, send: Send, make: Callable[[Shape], bytes], stop: asyncio.Event) -> None:
        self._send, self._make, self._stop = send, make, stop
        self.outcomes: list[Outcome] = []
        self.open: dict[int, Outcome] = {}
        self.failed = self.events = 0
        self.server_is_gone = False
        self._refused_since: float | None = None

    async def closed_loop(self, shapes: Iterator[Shape], concurrency: int, seconds: float | None = None) -> None:
        """Keep so many requests open, each begun when another ended, until the shapes or the time run out."""
        deadline = time.monotonic() + seconds if seconds is not None else float("inf")

        async def work() -> None:
            while time.monotonic() < deadline and (shape := self._next(shapes)) is not None:
                body = self._make(shape)
                await self._one(shape, body, time.monotonic(), contextlib.nullcontext())
                if self._refused_since is not None:
                    await asyncio.sleep(RETRY_SECONDS)

        async def all_of_them() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(work())

        await self._until_stop(all_of_them())

    async def open_loop(self, shapes: Iterator[Shape], most_open: int | None = None) -> None:
        """Send each request at its time, whatever became of those before; at most `most_open` at once.

        A request that has to wait for that limit, or that is sent late, was still intended for its own time.
        """
        slots = asyncio.Semaphore(most_open) if most_open else contextlib.nullcontext()

        async def arrive() -> None:
            begin = time.monotonic()
            async with asyncio.TaskGroup() as group:
                while (shape := self._next(shapes)) is not None:
                    # Made before its time, so that making it does not delay it.
                    body = self._make(shape)
                    await _sleep_until(begin + shape.at)
                    group.create_task(self._one(shape, body, begin + shape.at, slots))

        await self._until_stop(arrive())

    def _next(self, shapes: Iterator[Shape]) -> Shape | None:
        """What to send next; None at the end, or where nobody would take it."""
        return None if self.server_is_gone else next(shapes, None)

    async def _one(
        self, shape: Shape, body: bytes, intended: float, slot: contextlib.AbstractAsyncContextManager[Any]
    ) -> None:
        number, outcome = len(self.outcomes), Outcome(intended, shape.prompt_tokens)
        self.outcomes.append(outcome)
        self.open[number] = outcome
        try:
            async with slot:
                await self._send(body, outcome)
        except asyncio.CancelledError:
            outcome.failure = CUT_OFF
            raise
        finally:
            del self.open[number]
            self.failed += bool(outcome.failure)
            self._note_refusal(outcome.failure == REFUSED, time.monotonic())
            self.events += len(outcome.times)

    def _note_refusal(self, refused: bool, now: float) -> None:
        """Whether a request's connection was refused; any other outcome shows that somebody listens, or did."""
        if not refused:
            self._refused_since = None
            return
        self._refused_since = now if self._refused_since is None else self._refused_since
        self.server_is_gone = now - self._refused_since >= GONE_SECONDS

    async def _until_stop(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if task.done():
            task.result()
            return
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _sleep_until(moment: float) -> None:
    left = moment - time.monotonic()
    while left > 0:
        # A timer may go off up to a millisecond early.
        await asyncio.sleep(left)
        left = moment - time.monotonic()
