"""The engine process belongs to the API process, and ends with it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from ..wire.launch import EXIT_ENGINE

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
# At most fifteen bytes.
PROCESS_NAME = b"pagetide-engine"


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process with its parent (Linux); elsewhere the heartbeat looks."""
    # The parent decides when to stop: a Ctrl-C or a SIGTERM to the whole group must not cut running requests.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # For those who look at the list of processes.
        ctypes.CDLL(None).prctl(_PR_SET_NAME, PROCESS_NAME)
    if os.getppid() != parent:
        os._exit(EXIT_ENGINE)
