"""The control groups that this process lives in (Linux), where the limits of a container stand. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def groups(controller: str, root: Path) -> Iterator[tuple[Path, bool]]:
    """(folder, whether it is of the unified hierarchy) of the process's group for a controller and of those above it.

    Args:
        controller: such as "memory" or "cpu".
        root: where `proc` and `sys` lie.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, is_unified = root / "sys/fs/cgroup", True
        elif controller in controllers.split(","):
            base, is_unified = root / "sys/fs/cgroup" / controller, False
        else:
            continue
        below = [p for p in path.split("/") if p]
        # In a container its own group is the root, whatever path the host calls it by.
        for depth in range(len(below) + 1):
            yield base.joinpath(*below[:depth]), is_unified
