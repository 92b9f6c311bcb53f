"""Launch on the GPU that holds the tensors. Triton takes the process's current one, whatever it is given."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def on_its_device(launcher: Callable[P, R]) -> Callable[P, R]:
    """`launcher`, with the GPU of its first parameter, a tensor or a list of some, as the current one."""
    name = next(iter(inspect.signature(launcher).parameters))

    @functools.wraps(launcher)
    def launched(*args: P.args, **options: P.kwargs) -> R:
        first: Any = args[0] if args else options[name]
        tensor = first if hasattr(first, "is_cuda") else next(iter(first), None)
        if tensor is None or not tensor.is_cuda or tensor.get_device() == torch.cuda.current_device():
            return launcher(*args, **options)
        with torch.cuda.device(tensor.get_device()):
            return launcher(*args, **options)

    return launched
