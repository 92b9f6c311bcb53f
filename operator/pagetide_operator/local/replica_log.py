"""What a replica's log, of either form, says last."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_TAIL_BYTES = 16 << 10
# A log line as the server writes it.
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ (?P<level>[A-Z]+) (?P<logger>\S+) (?P<said>.*)")
# The one line of a command that ends.
_ENDED = re.compile(r"pagetide [a-z]+: ")
_ERRORS = ("error", "critical")
# The runner's own probes are logged as well; they are no news to it.
_ACCESS = "pagetide.access"


class _Line(NamedTuple):
    said: str
    is_error: bool
    is_access: bool


def last_line(log: Path) -> str:
    """What a log says last: its last line about an error, or else the last one; empty where there is none."""
    last = ""
    # Requests that were under way may still be logged behind an error.
    for line in map(_read, _backwards(log)):
        if line.said and not line.is_access:
            last = last or line.said
            if line.is_error:
                return line.said
    return last


def _backwards(log: Path) -> Iterator[str]:
    """The lines at the end of a log, the last one first."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            begin = max(0, file.tell() - _TAIL_BYTES)
            file.seek(begin)
            if begin:
                file.readline()  # the rest of a line says nothing, and hides what kind of line it was
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return
    yield from reversed(lines)


def _read(line: str) -> _Line:
    """What a line says, without its time, level and source."""
    fields: Any = None
    if line.startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):  # text may begin so, too
            fields = json.loads(line)
    if isinstance(fields, dict) and isinstance(fields.get("message"), str):
        return _of(fields["message"], str(fields.get("level")), fields.get("logger"))
    if found := _LOGGED.match(line):
        return _of(found["said"], found["level"], found["logger"])
    return _Line(line.strip(), bool(_ENDED.match(line)), is_access=False)


def _of(said: str, level: str, logger: str | None) -> _Line:
    return _Line(" ".join(said.split()), level.lower() in _ERRORS, logger == _ACCESS)
