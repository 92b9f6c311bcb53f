"""What people see: a table of services and the progress of a start, for terminals and for logs."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.logging import RichHandler
from rich.status import Status
from rich.table import Table
from rich.text import Text

from pagetide_spec.logs import in_form, stderr_handler
from pagetide_spec.streams import write_line

from .status import COLUMNS, SCALING_COLUMNS, changes, is_ready, row, scaling_row

log = logging.getLogger(__name__)

_stderr = Console(stderr=True)
_PERCENT = re.compile(r"\d+%")


def print_table(services: Sequence[Mapping[str, Any]]) -> None:
    """The services as a table on stdout; plain columns where it is no terminal."""
    if sys.stdout.isatty():
        Console().print(_table(services))
    else:
        print(plain_table(list(map(row, services))))
    sys.stdout.flush()


def _table(services: Sequence[Mapping[str, Any]], more: Sequence[str] = ()) -> Table:
    """A table for terminals; `more` are columns about scaling."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (*COLUMNS, *more):
        table.add_column(name.upper(), overflow="fold")
    for service in services:
        cells = (*row(service), *(scaling_row(service) if more else ()))
        table.add_row(*map(Text, cells), style=None if is_ready(service) else "yellow")
    return table


class Screen:
    """What people see while services run: on a terminal a table that stays true below the lines of news, elsewhere the
    lines alone. In the form "json" each line is an object, and nothing is drawn.

    A stream that cannot be written (a full disk, a reader that has left) ends nothing: what is meant for it is lost.
    """

    def __init__(self, form: str) -> None:
        self._form = form
        self._live: Live | None = None

    def note(self, line: str, level: int = logging.INFO) -> None:
        """One line on stderr, whatever the log level."""
        write_line(in_form(line, self._form, level), sys.stderr)

    def progress(self, prefix: str) -> Progress:
        """What is being waited for."""
        return Progress(prefix, self.note, is_drawn=self._form == "text" and _stderr.is_terminal)

    def table(self, services: Sequence[Mapping[str, Any]]) -> None:
        """The services as they are now; a line each where nothing is drawn."""
        if self._form == "json":
            for line in changes((), services):
                self.news(line)
        elif sys.stdout.isatty():
            print_table(services)
        else:
            self._print(plain_table(list(map(row, services))))

    @contextlib.contextmanager
    def live(self, is_scaled: bool) -> Iterator[None]:
        """Within this context the table is shown, if some service is scaled and this is a terminal."""
        if not (is_scaled and self._form == "text" and sys.stdout.isatty()):
            yield
            return
        with Live(console=Console(), auto_refresh=False) as self._live:
            yield
        self._live = None

    def news(self, line: str) -> None:
        """One line on stdout."""
        if self._live is not None:
            self._live.console.print(Text(line))
        else:
            self._print(in_form(line, self._form))

    def update(self, services: Sequence[Mapping[str, Any]]) -> None:
        """Show the services as they are now."""
        if self._live is not None:
            self._live.update(_table(services, SCALING_COLUMNS), refresh=True)

    def _print(self, text: str) -> None:
        if error := write_line(text, sys.stdout):
            log.warning("stdout cannot be written: %s; %s", error.strerror, text)


def plain_table(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns under their names in capitals."""
    lines = [[name.upper() for name in COLUMNS], *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    return "\n".join("   ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def log_handler(form: str) -> logging.Handler:
    """For log lines on stderr; those of text do not tear the progress line of a terminal apart."""
    if form == "text" and _stderr.is_terminal:
        return RichHandler(console=_stderr, show_time=False, show_path=False)
    return stderr_handler(form, "%(levelname)s %(message)s")


class Progress:
    """What is being waited for: where it is drawn, one line that changes, elsewhere `note` of each new phase."""

    def __init__(self, prefix: str, note: Callable[[str], None], is_drawn: bool) -> None:
        self._prefix, self._note, self._is_drawn = prefix, note, is_drawn
        self._status: Status | None = None
        self._begun = time.monotonic()
        self._told, self._told_at = "", 0.0

    def __enter__(self) -> Progress:
        if self._is_drawn:
            self._status = _stderr.status(self._prefix)
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._status:
            self._status.stop()

    def update(self, text: str) -> None:
        """Show the state `text`; call it as often as you like."""
        now = time.monotonic()
        line = f"{self._prefix} ({now - self._begun:.0f} s): {text}"
        if self._status:
            # As text, not markup: log lines may hold square brackets.
            self._status.update(Text(_cut(line, _stderr.width - 4)))
        elif (phase := _PERCENT.sub("", text)) != self._told and now - self._told_at >= 1:
            self._note(line)
            self._told, self._told_at = phase, now


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(1, width - 3)] + "..."
