"""What was freed goes back to the system, so that it does not count as used for ever."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Small pieces, and one that stays at the end of the heap: without help the C library keeps them all.
SCRIPT = """
import ctypes, pathlib, sys
from pagetide_server.freed_memory import return_freed
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096 // 2**20
pieces = [libc.malloc(1000) for _ in range(100_000)]
for piece in pieces:
    ctypes.memset(ctypes.c_void_p(piece), 1, 1000)
last = libc.malloc(1000)
for piece in pieces:
    libc.free(ctypes.c_void_p(piece))
before = resident()
return_freed()
print(before - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_memory_is_returned() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 80
