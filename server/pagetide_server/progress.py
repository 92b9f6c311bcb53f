"""Progress of long work: a bar on a terminal; of loading, log lines elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

log = logging.getLogger(__name__)
LOG_EVERY = 0.25


class LoadingProgress:
    """Shows stages and their fractions until `close`, or within a `with`."""

    def __init__(self) -> None:
        self._name, self._fraction = "", 0.0
        self._logged = -1.0
        self._bar: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task("starting", total=1.0)
            self._bar.start()

    def report(self, stage: str, fraction: float) -> None:
        """A stage has come so far."""
        is_news = stage != self._name or fraction - self._logged >= LOG_EVERY or (fraction >= 1 > self._logged)
        self._name, self._fraction = stage, fraction
        if self._bar is not None:
            self._bar.update(self._task, description=stage, completed=fraction)
        elif is_news:
            self._logged = fraction
            log.info("loading: %s", self.stage)

    @property
    def stage(self) -> str:
        """Such as "weights 40%"; empty before the first report."""
        return f"{self._name} {round(100 * self._fraction)}%" if self._name else ""

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def __enter__(self) -> LoadingProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def prompts_bar(total: int, wanted: bool | None) -> Iterator[Callable[[], object]]:
    """A bar of so many prompts; yields what to call when one is done. None: on a terminal, for more than one."""
    console = Console(stderr=True)
    shown = (console.is_terminal and total > 1) if wanted is None else wanted
    columns = (TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not shown) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
