"""The standard streams of a program, which may be closed when it starts and may fail while it runs."""

from __future__ import annotations

import os
import sys

# Little is imported here, and so fast: until `run_program` runs, an interrupt is a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

INTERRUPTED = 130
# As a shell reports a program that SIGPIPE has ended.
READER_LEFT = 141


def run_program(main: Callable[[], int], name: str) -> int:
    """What `main` returns, if all that it printed could be written; else one line that begins with `name`, and 1.

    Quietly, a reader that has left makes it READER_LEFT, and an interrupt that `main` does not handle INTERRUPTED.
    """
    open_streams()
    try:
        return _flushed(main)
    except BrokenPipeError:  # whoever read the output, such as `head`, has read enough
        discard(sys.stdout)
        return READER_LEFT
    except OSError as error:
        import errno

        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        discard(sys.stdout)
        what = "the output" if error.filename is None else repr(error.filename)
        write_line(f"{name}: {what} cannot be written: {error.strerror}", sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _flushed(main: Callable[[], int]) -> int:
    try:
        code = main()
    except SystemExit:  # as --help leaves
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return code


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
