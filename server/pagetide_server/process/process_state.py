"""What the system knows of a process that says nothing itself."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

_STOPPED = ("T", "t")


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessState:
    """A process's state: whether it is stopped (SIGSTOP, a debugger), and its processor time since its start."""

    is_stopped: bool
    cpu_seconds: float


def process_state(pid: int) -> ProcessState | None:
    """Of a process; None where the system does not report it (no Linux, or the process is gone)."""
    try:
        # The name, in brackets, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return ProcessState(fields[0] in _STOPPED, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
