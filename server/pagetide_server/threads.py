"""How many threads torch's CPU kernels use, and how they wait. Imports no torch, since it must run before that."""

from __future__ import annotations

import math
import os
from pathlib import Path

from .cgroups import groups

# Looks of a waiting thread before it sleeps: some tens of microseconds. Of 0, 1,000, 3,000 and 20,000 as quick alone as
# the most, and beside a neighbour still quicker than none.
SPINS = "3000"


def set_up_threads() -> None:
    """Use the cores that this process may use, and no more; let idle threads sleep soon. What the user set stays.

    Takes effect if torch has not been imported yet. Torch counts the cores that it may run on, but knows nothing of a
    container's share of their time: with a limit of 2 cores on a node of 64 it would start 64 threads, which the
    kernel then stops together for most of each tenth of a second.
    """
    wait_briefly()
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if (share := shared_cores()) is not None and share < allowed:
        os.environ.setdefault("OMP_NUM_THREADS", str(share))


def wait_briefly() -> None:
    """Let idle OpenMP threads spin for a moment, then sleep; takes effect if torch has not been imported yet.

    Between two operations of a step pass a few microseconds: to sleep and be woken takes longer than that, a sixth of
    a decode step of a small model. But a thread that spins for long takes the core from whoever has the work it waits
    for: by default a neighbour on one of two cores stretches a step to three times its time. What the user set stays.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    os.environ.setdefault("KMP_BLOCKTIME", "0")


def shared_cores(root: Path = Path("/")) -> int | None:
    """The cores' worth of time that the control groups of this process allow, rounded up; None if they state none.

    Args:
        root: where `proc` and `sys` lie.
    """
    found = [_quota(folder, is_unified) for folder, is_unified in groups("cpu", root)]
    return min((math.ceil(quota) for quota in found if quota is not None), default=None)


def _quota(folder: Path, is_unified: bool) -> float | None:
    """Cores' worth of time of one group: `max 100000` or `-1` is none, `150000 100000` is one and a half."""
    names = ("cpu.max",) if is_unified else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    try:
        words = [word for name in names for word in (folder / name).read_text().split()]
    except OSError:
        return None
    if len(words) != 2 or not all(word.isdigit() for word in words) or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])
