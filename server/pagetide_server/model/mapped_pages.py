"""Gives back the memory of file pages that were read through a mapping and are not needed any more (Linux)."""

from __future__ import annotations

import bisect
import ctypes
import mmap
import sys
from pathlib import Path

import torch

_DONTNEED = 4


class MappedPages:
    """The mappings of files that this process has now.

    safetensors maps a file, and what was read of it stays resident until the whole mapping is gone: while weights are
    copied out of it, the process would hold them twice.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._advise = ctypes.CDLL(None, use_errno=True).madvise if sys.platform == "linux" else None
        if self._advise is None:
            return
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, _, _, _, inode = line.split()[:5]
            if inode != "0":
                start, _, end = addresses.partition("-")
                self._starts.append(int(start, 16))
                self._ends.append(int(end, 16))

    def drop(self, tensor: torch.Tensor) -> None:
        """Drop the whole pages within `tensor` if a file lies behind them; reading them again would read the file.

        Memory that is not a file's is left alone.
        """
        first, last = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        at = bisect.bisect_right(self._starts, first) - 1
        if self._advise is None or at < 0 or last > self._ends[at]:
            return
        start, end = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, last // mmap.PAGESIZE * mmap.PAGESIZE
        if start < end:
            # Advice only: where it is refused, the memory comes back with the mapping.
            self._advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONTNEED)
