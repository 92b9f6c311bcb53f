"""How much memory this process may still take: of the machine, and of the control groups that it lives in."""

from __future__ import annotations

import resource
from pathlib import Path

from ..cgroups import groups

# A group without a limit states a number near the greatest of 64 bits.
_UNLIMITED = 1 << 60
# The files of a group's limit and of what it holds, in the unified hierarchy and in the older one.
_UNIFIED = ("memory.max", "memory.current")
_OLD = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be taken without swapping and without reaching a control group's limit.

    The least of /proc/meminfo's MemAvailable, of what `ulimit -v` leaves this process, and for each group of this
    process with a limit, the limit less what the group holds beside file pages that can be dropped.

    Args:
        root: where `proc` and `sys` lie.
    """
    found = [_machine(root), *_of_this_process(root)]
    for folder, is_unified in groups("memory", root):
        limit_file, usage_file = _UNIFIED if is_unified else _OLD
        limit, usage = _number(folder / limit_file), _number(folder / usage_file)
        if limit is not None and usage is not None and limit < _UNLIMITED:
            found.append(max(0, limit - usage + _droppable(folder)))
    return min(found)


def _machine(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")


def _of_this_process(root: Path) -> list[int]:
    """What a limit of its addresses leaves, if there is one: memory that is only set aside counts, too."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return []
    pages = int((root / "proc/self/statm").read_text().split()[0])
    return [max(0, limit - pages * resource.getpagesize())]


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _droppable(folder: Path) -> int:
    """Bytes of file pages that nobody used lately."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return int(values.get("total_inactive_file", values.get("inactive_file", 0)))
