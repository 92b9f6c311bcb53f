"""How this process takes memory from the system and gives it back (glibc, Linux). Imports no torch."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterator

# glibc's names for what `mallopt` sets.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
# Freed memory at the end of the heap that is kept: more than the largest tensors of one step take.
KEPT_BYTES = 1 << 30


def use_huge_pages() -> None:
    """Have torch ask for pages of 2 MiB for large tensors; takes effect if it has not been imported yet.

    A decode step reads all weights once, and finding the place of each 4 KiB of them costs a tenth of its time. What
    the user set stays, and so does the system's own rule: where it says `never`, nothing changes.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def keep_freed() -> None:
    """Have the C library keep what was freed, up to KEPT_BYTES, for the next step; elsewhere nothing happens.

    By itself glibc maps every allocation above 32 MiB again, and unmaps it when it is freed: each step's logits, and
    most of a prompt's activations, would be taken page by page from the system, which clears them first. With Gemma 3
    270M that was a tenth of the time of a prompt.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)


def return_freed() -> None:
    """Have the C library let go of the memory that it keeps for reuse; elsewhere nothing happens.

    To be called once something large has been read for good: the tokenizer of a vocabulary of 262,144 tokens needs
    110 MB, but its file is parsed in pieces so small that glibc holds 190 MB of them for ever.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextlib.contextmanager
def frozen_heap() -> Iterator[None]:
    """Spare the garbage collector the objects that are there now: walking a model's took 1.5% of a batch's time.

    Where the user has frozen some already, nothing changes, since thawing would thaw theirs.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
