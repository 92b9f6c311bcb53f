"""Private folders for sockets. What a killed server leaves of them goes when the next one starts.

Each folder holds a locked file. The system drops the lock with the process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "pagetide-ipc-"
LOCK = "lock"


class SocketFolder:
    """A folder that only this user can enter; made now, and removed by `remove`."""

    def __init__(self) -> None:
        _remove_stale(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        # Renamed once it is locked: an unlocked file of this name has no owner any more.
        unready = self.path / "unready"
        self._lock = os.open(unready, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unready.rename(self.path / LOCK)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_stale(parent: Path) -> None:
    """Remove the folders whose servers are gone; those of other users stay."""
    for lock in parent.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError), lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent)
