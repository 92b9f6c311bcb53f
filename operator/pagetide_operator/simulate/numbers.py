"""Types of the command's flags."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TypeVar

N = TypeVar("N", int, float)


def above_zero(kind: Callable[[str], N]) -> Callable[[str], N]:
    """An argparse type: `kind`, and more than 0."""

    def parse(text: str) -> N:
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"{text!r}: must be above 0")
        return value

    parse.__name__ = kind.__name__
    return parse
