"""How the threads of torch's CPU kernels wait. Imports no torch, since it must run before that."""

from __future__ import annotations

import os


def wait_passively() -> None:
    """Let idle OpenMP threads sleep instead of spinning; takes effect if torch has not been imported yet.

    A spinning thread takes the core from whoever has the work it waits for. With one neighbour on two cores a decode
    step of a small model took a third of its time this way; what the user set stays.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
