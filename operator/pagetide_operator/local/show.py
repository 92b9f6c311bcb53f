"""What people see: a table of services and the progress of a start, for terminals and for logs."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.logging import RichHandler
from rich.status import Status
from rich.table import Table
from rich.text import Text

from .status import COLUMNS, is_ready, row

_stderr = Console(stderr=True)
# Without a terminal, a start that goes on is told this often.
_QUIET_S = 10.0


def print_table(services: Sequence[Mapping[str, Any]]) -> None:
    """The services as a table on stdout; plain columns where it is no terminal."""
    rows = [row(service) for service in services]
    if sys.stdout.isatty():
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in COLUMNS:
            table.add_column(name.upper(), overflow="fold")
        for cells, service in zip(rows, services, strict=True):
            table.add_row(*cells, style=None if is_ready(service) else "yellow")
        Console().print(table)
    else:
        print(plain_table(rows))
    sys.stdout.flush()


def plain_table(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns under their names in capitals."""
    lines = [[name.upper() for name in COLUMNS], *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    return "\n".join("   ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def log_handler() -> logging.Handler:
    """For log lines on stderr that do not tear the progress line of a terminal apart."""
    if _stderr.is_terminal:
        return RichHandler(console=_stderr, show_time=False, show_path=False)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    return handler


class Progress:
    """What is being waited for, on stderr: one line that changes on a terminal, a line now and then elsewhere."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._console = _stderr
        self._status: Status | None = None
        self._begun = time.monotonic()
        self._told, self._told_at = "", 0.0

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._status = self._console.status(self._prefix)
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
            self._status.update(Text(_cut(line, self._console.width - 4)))
        elif now - self._told_at >= _QUIET_S or (text != self._told and now - self._told_at >= 1):
            print(line, file=sys.stderr, flush=True)
            self._told, self._told_at = text, now


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(1, width - 3)] + "..."
