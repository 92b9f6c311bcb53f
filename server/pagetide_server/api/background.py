"""Long work beside the event loop that must not keep the process from ending."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_background(work: Callable[[], T]) -> asyncio.Future[T]:
    """The result of `work`, which runs in a thread of its own.

    Unlike with `asyncio.to_thread`, neither the end of the event loop nor that of the process waits for it.
    """
    found: concurrent.futures.Future[T] = concurrent.futures.Future()
    # Nobody can stop it any more, also if the waiting request is cancelled.
    found.set_running_or_notify_cancel()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            found.set_exception(error)

    threading.Thread(target=run, name="background", daemon=True).start()
    return asyncio.wrap_future(found)
