"""How far a run is: a live line on a terminal, log lines elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from .load import Load

log = logging.getLogger(__name__)
REFRESH_SECONDS, LOG_SECONDS = 0.25, 10.0


@contextlib.asynccontextmanager
async def shown(load: Load, requests: int | None, seconds: float | None) -> AsyncIterator[None]:
    """Show the load's progress towards so many requests, or so many seconds, while the context lasts."""
    show = _bar if sys.stderr.isatty() else _lines
    task = asyncio.create_task(show(_State(load, requests, seconds)))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class _State:
    """What is shown; rates are since the last update."""

    def __init__(self, load: Load, requests: int | None, seconds: float | None) -> None:
        self._load, self._requests, self._seconds = load, requests, seconds
        self._begin = self._last = time.monotonic()
        self._events = 0

    def fraction(self) -> float | None:
        """How much of the run is over, where that is known."""
        parts = []
        if self._requests:
            parts.append(self._done / self._requests)
        if self._seconds:
            parts.append((time.monotonic() - self._begin) / self._seconds)
        return min(1.0, max(parts)) if parts else None

    def line(self) -> str:
        """The state in words."""
        load, now = self._load, time.monotonic()
        events = load.events + sum(len(o.times) for o in load.open.values())
        rate = (events - self._events) / max(now - self._last, 1e-3)
        self._last, self._events = now, events
        of = f"/{self._requests}" if self._requests else ""
        return f"{self._done}{of} requests, {load.failed} failed, {len(load.open)} open, {rate:,.0f} events/s"

    @property
    def _done(self) -> int:
        return len(self._load.outcomes) - len(self._load.open)


async def _bar(state: _State) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        while True:
            line, fraction = state.line(), state.fraction()
            bar.update(task, description=line, completed=fraction or 0.0, total=None if fraction is None else 1.0)
            await asyncio.sleep(REFRESH_SECONDS)


async def _lines(state: _State) -> None:
    while True:
        await asyncio.sleep(LOG_SECONDS)
        log.info("%s", state.line())
