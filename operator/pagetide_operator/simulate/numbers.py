"""Types of the command's flags."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TypeVar

N = TypeVar("N", int, float)

# Of replicas, and of times that a trace is laid over itself: beyond it a replay ends in no time that anybody has.
MOST = 10_000


def above_zero(kind: Callable[[str], N], most: float = math.inf) -> Callable[[str], N]:
    """An argparse type: `kind`, more than 0, and finite or at most `most`."""
    upper = "finite" if most == math.inf else f"at most {most}"

    def parse(text: str) -> N:
        value = kind(text)
        if not 0 < value <= most or value == math.inf:
            raise argparse.ArgumentTypeError(f"{text!r}: must be above 0 and {upper}")
        return value

    parse.__name__ = kind.__name__
    return parse
