"""The standard streams of a program, which may be closed when it starts and may fail while it runs."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def open_streams() -> None:
    """Open a closed stdin, stdout or stderr on nothing: else a socket takes its number, and gets what is printed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for as long as the process lives


def write_line(text: str, stream: TextIO) -> OSError | None:
    """Print a line at once; where that fails (a full disk, a reader that has left), discard the stream and say why."""
    try:
        print(text, file=stream, flush=True)
    except OSError as error:
        discard(stream)
        return error
    return None


def discard(stream: TextIO) -> None:
    """Let what is written from now on, and what is still buffered, go nowhere."""
    number = stream.fileno()
    nothing = os.open(os.devnull, os.O_WRONLY)
    if nothing == number:  # it had been closed beneath the stream
        return
    os.dup2(nothing, number)
    os.close(nothing)
