"""Loading, serving, draining: which of it is true now, and how many requests are in flight."""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Callable, Iterator


class Phase(enum.Enum):
    """Where the server stands; it only ever moves forward."""

    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"


class Lifecycle:
    """The server's phase, and the requests that a drain has to wait for; `loading` says how far that has come."""

    def __init__(self, loading: Callable[[], str]) -> None:
        self.phase = Phase.LOADING
        self._loading = loading
        self.in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def serve(self) -> None:
        """The model is loaded. A drain that has begun goes on."""
        if self.phase is Phase.LOADING:
            self.phase = Phase.SERVING

    def drain(self) -> None:
        """Take no more requests."""
        self.phase = Phase.DRAINING

    def why_closed(self) -> str | None:
        """Why no request is taken now, or None."""
        if self.phase is Phase.LOADING:
            return "the model is still loading" + (f": {told}" if (told := self._loading()) else "")
        return "the server is shutting down" if self.phase is Phase.DRAINING else None

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """One request is in flight within this context."""
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()
