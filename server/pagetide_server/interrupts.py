"""Ctrl-C only between steps: an exception in the middle of one would leave blocks that belong to nobody."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_back() -> Iterator[Callable[[], None]]:
    """Hold SIGINT back from the body; yields a function that delivers what has come, and does so at the end.

    Delivered means: given to the handler that there was, which usually raises KeyboardInterrupt. Does nothing outside
    the main thread, which alone is interrupted, and where the process ignores SIGINT or dies of it.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield lambda: None
        return
    came: list[FrameType | None] = []

    def deliver() -> None:
        if came:
            frame = came[-1]
            came.clear()
            handler(signal.SIGINT, frame)

    signal.signal(signal.SIGINT, lambda number, frame: came.append(frame))
    try:
        yield deliver
    finally:
        signal.signal(signal.SIGINT, handler)
        deliver()
