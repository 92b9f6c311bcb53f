"""Gives freed memory back to the system (glibc). Imports no torch."""

from __future__ import annotations

import ctypes


def return_freed() -> None:
    """Have the C library let go of the memory that it keeps for reuse; where it is another one, nothing happens.

    To be called once something large has been read for good: the tokenizer of a vocabulary of 262,144 tokens needs
    110 MB, but its file is parsed in pieces so small that glibc holds 190 MB of them for ever.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
