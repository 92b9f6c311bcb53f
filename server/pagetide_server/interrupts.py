"""Ctrl-C only between steps: an exception in the middle of one would leak blocks."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class HeldBack:
    """SIGINT as the body of `held_back` sees it. `broke_in`: a second one came while the first still waited."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any] | None) -> None:
        self._handler = handler
        self._came: list[FrameType | None] = []
        self.broke_in = False

    def take(self, number: int, frame: FrameType | None) -> None:
        """Keep a signal for later; a second one shows that the step may never end, and is delivered at once."""
        self._came.append(frame)
        if len(self._came) > 1:
            self.broke_in = True
            self.deliver()

    def deliver(self) -> None:
        """Give what has come to the handler that there was, which usually raises KeyboardInterrupt."""
        if self._came and self._handler is not None:
            frame = self._came[-1]
            self._came.clear()
            self._handler(signal.SIGINT, frame)


@contextmanager
def held_back() -> Iterator[HeldBack]:
    """Hold SIGINT back from the body until it calls `deliver`, or ends.

    Does nothing outside the main thread, which alone is interrupted, and where the process ignores SIGINT or dies of
    it.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield HeldBack(None)
        return
    held = HeldBack(handler)
    signal.signal(signal.SIGINT, held.take)
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, handler)
        held.deliver()
