"""What a replica's log, of either form, says last."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

_TAIL_BYTES = 16 << 10
# As the server writes it: a log line of that level, or the one line of a command that ends.
_ERROR = re.compile(r" ERROR |^pagetide [a-z]+: ")
# How a log line begins; what follows is what it says.
_BEGIN = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ [A-Z]+ \S+ ")
# The runner's own probes are logged as well; they are no news to it.
_ACCESS = "pagetide.access"


class _Line(NamedTuple):
    text: str
    is_error: bool
    is_access: bool


def last_line(log: Path) -> str:
    """What a log says last: its last line about an error, or else the last one; empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            begin = max(0, file.tell() - _TAIL_BYTES)
            file.seek(begin)
            if begin:
                file.readline()  # the rest of a line says nothing, and hides what kind of line it was
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    said = [line for line in map(_read, reversed(lines)) if line.text and not line.is_access]
    # Requests that were under way may still be logged behind the reason.
    return next((line.text for line in said if line.is_error), said[0].text if said else "")


def _read(line: str) -> _Line:
    """What a line says, without its time, level and source."""
    fields: Any = None
    if line.startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):  # text may begin so, too
            fields = json.loads(line)
    if isinstance(fields, dict) and isinstance(fields.get("message"), str):
        return _Line(fields["message"].strip(), fields.get("level") == "error", fields.get("logger") == _ACCESS)
    return _Line(_BEGIN.sub("", line, count=1).strip(), bool(_ERROR.search(line)), f" {_ACCESS} " in line)
