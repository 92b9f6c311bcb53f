"""Which type a model's weights have in their files."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path

import torch

_NARROW = {"F16": torch.float16, "BF16": torch.bfloat16}


def stored_dtype(files: Iterable[Path]) -> torch.dtype | None:
    """The 16-bit type that all tensors of whole safetensors files have; None if there is no such.

    Computing in float32 from such weights gives the same bits as from weights that were widened first.
    """
    kinds = {tensor["dtype"] for path in files for tensor in _header(path).values()}
    return _NARROW.get(kinds.pop()) if len(kinds) == 1 else None


def _header(path: Path) -> dict[str, dict[str, str]]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, dict[str, str]] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header
