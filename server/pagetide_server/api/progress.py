"""Progress of loading: a bar on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

log = logging.getLogger("pagetide")
LOG_EVERY = 0.25


class LoadingProgress:
    """Shows stages and their fractions until `close`."""

    def __init__(self) -> None:
        self._stage = ""
        self._logged = -1.0
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("starting", total=1.0)
            self._bar.start()

    def report(self, stage: str, fraction: float) -> None:
        """A stage has come so far."""
        if self._bar is not None:
            self._bar.update(self._task, description=stage, completed=fraction)
        elif stage != self._stage or fraction - self._logged >= LOG_EVERY or (fraction >= 1 > self._logged):
            self._logged = fraction
            log.info("loading: %s %d%%", stage, round(100 * fraction))
        self._stage = stage

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
