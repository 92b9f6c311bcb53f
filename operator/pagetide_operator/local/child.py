"""Becomes the command given on its command line, which the kernel then ends when the runner dies, however it dies.

Called as `python -m pagetide_operator.local.child PARENT_PID COMMAND...`. The death signal is a wish of the process
itself and outlives `exec`. To set it between `fork` and `exec` in the runner is not safe, since the runner has
threads.
On systems other than Linux there is no such signal, and only an orderly end of the runner ends its replicas.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Never returns: becomes the command, or exits with 127 when there is no such command."""
    parent, command = int(argv[0]), argv[1:]
    if sys.platform == "linux":
        # SIGKILL and not SIGTERM: with the gateway gone there is nobody to finish a stream for.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # It died before the wish was made.
        sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
