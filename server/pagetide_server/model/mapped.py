"""Weights that are still pages of their file."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import Any

import torch


def own_weights(network: Any) -> None:
    """Copy weights that are still the mapped file into memory of our own.

    A served model then stands no harm when its file changes, never waits for the disk, counts as used memory, and its
    matrices begin where vector instructions like them to.
    """
    for weight in network.parameters():
        source = weight.data
        weight.data = source.clone()
        give_back(source)


def give_back(weight: torch.Tensor) -> None:
    """Let go of the pages of a weight that was read from a mapped file and is not needed any more.

    Without it the whole file would count as this process's memory until its last weight is read. What is no file's
    page stays; a page that is needed again is read again.
    """
    if weight.device.type != "cpu":
        return
    first = -(-weight.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (weight.data_ptr() + weight.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if size > 0 and _is_file(first, size):
        libc = ctypes.CDLL(None, use_errno=True)
        # (It only ever costs memory, so whether it succeeded does not matter.)
        libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


def _is_file(first: int, size: int) -> bool:
    """Whether all of that memory is one mapping of a file.

    The file's name says nothing: a hub's cache keeps weights under their hash.
    """
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    for line in lines:
        # ADDRESSES PERMISSIONS OFFSET DEVICE INODE PATH; what is no file has the inode 0.
        addresses, _, _, _, inode, *_ = line.split(maxsplit=5)
        low, _, high = addresses.partition("-")
        if int(low, 16) <= first and first + size <= int(high, 16):
            return inode != "0"
    return False
