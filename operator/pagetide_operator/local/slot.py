"""A replica of the local runner, whichever process it is just now."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

from .plan import Seen
from .service import LocalService


@dataclasses.dataclass
class Slot:
    """One replica over all its lives. `reason` says why the last one ended; `ready_at`, `draining_at`: since when this
    one answers, and gets nothing new (seconds since the epoch)."""

    service: LocalService
    name: str
    log: Path
    process: asyncio.subprocess.Process | None = None
    port: int = 0
    started: float = 0.0
    was_ready: bool = False
    is_stopping: bool = False
    broken: bool = False
    failures: int = 0
    restarts: int = 0
    restart_at: float = 0.0
    reason: str = ""
    ready_at: float | None = None
    draining_at: float | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def seen(self) -> Seen:
        """As `plan` sees it."""
        is_running = self.process is not None
        return Seen(
            self.name,
            is_running=is_running,
            is_loading=is_running and not self.was_ready,
            is_stopping=self.is_stopping,
            broken=self.broken,
            restart_at=self.restart_at,
        )
