"""Which type a model's weights have in their files."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

_NARROW = {"F16": torch.float16, "BF16": torch.bfloat16}


def stored_dtype(files: Iterable[Path]) -> torch.dtype | None:
    """The 16-bit type that all tensors of whole safetensors files have; None if there is no such.

    Computing in float32 from such weights gives the same bits as from weights that were widened first.
    """
    kinds = {tensor["dtype"] for path in files for tensor in _header(path).values()}
    return _NARROW.get(kinds.pop()) if len(kinds) == 1 else None


def restore_computed(network: Any) -> bool:
    """Give a network that was loaded in 16 bits, but will compute in float32, its own constants unrounded.

    Returns:
        whether that is done: there may be some that we do not know how to make.
    """
    for module in network.modules():
        for name in sorted(module._non_persistent_buffers_set):
            if getattr(module, name).dtype not in _NARROW.values():
                continue
            exact = getattr(module, f"scalar_{name}", None)
            if not isinstance(exact, float):
                return False
            setattr(module, name, torch.tensor(exact, dtype=torch.float32))
    return True


def _header(path: Path) -> dict[str, dict[str, str]]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, dict[str, str]] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header
