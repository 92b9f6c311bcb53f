"""Which implementation of the ops runs on a device, and why.

`PAGETIDE_KERNELS` overrides the choice: `triton` (also on a CPU under TRITON_INTERPRET=1, for tests), `cpp` (C++, for a
CPU), `torch` (torch's own ops, everywhere), or `auto`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import subprocess

import torch

from .cpu import attention as cpu_attention
from .cpu.build import BuildError

VARIABLE = "PAGETIDE_KERNELS"
NAMES = ("auto", "triton", "cpp", "torch")
# NVIDIA's Ampere: what the Triton ops are compiled and tried for begins there.
OLDEST = (8, 0)
NO_TRITON = "the package triton is not installed"


class KernelChoiceError(ValueError):
    """What `PAGETIDE_KERNELS` asks for does not exist or cannot run here.

    Attributes:
        value: what it asks for.
        problem: why it cannot be, and what would be right.
    """

    def __init__(self, value: str, problem: str) -> None:
        self.value, self.problem = value, problem
        super().__init__(f"{VARIABLE}: {value!r}: {problem}")


@dataclasses.dataclass(frozen=True)
class Choice:
    """An implementation (`triton`, `cpp` or `torch`) and one line that says why it was taken."""

    name: str
    reason: str


def choose(device: torch.device) -> Choice:
    """The implementation of all ops for tensors on `device`.

    The first call of a process for a kind of device may compile for seconds; later calls are free. So the engine makes
    it while it loads the model, and logs it.

    Raises:
        KernelChoiceError: `PAGETIDE_KERNELS` has a wrong value, or asks for what cannot run here.
        ValueError: nothing here runs on such a device.
    """
    return _choose(device.type, os.environ.get(VARIABLE) or "auto")


@functools.cache
def _choose(device_type: str, wanted: str) -> Choice:
    if device_type not in ("cpu", "cuda"):
        raise ValueError(f"no attention implementation for a device of type {device_type!r}; use cpu or cuda")
    if wanted not in NAMES:
        raise KernelChoiceError(wanted, f"must be one of {', '.join(NAMES)}")
    return _for_cuda(wanted) if device_type == "cuda" else _for_cpu(wanted)


def _for_cuda(wanted: str) -> Choice:
    if wanted == "cpp":
        raise KernelChoiceError(wanted, "its ops run on a CPU only; use triton or torch")
    if wanted == "torch":
        return Choice("torch", f"{VARIABLE} asks for it")
    problem = _problem_of_triton()
    if problem is None:
        return Choice("triton", f"{VARIABLE} asks for it" if wanted == "triton" else "the fastest for a GPU")
    if wanted == "triton":
        raise KernelChoiceError(wanted, problem)
    return Choice("torch", f"{problem}; torch ops are correct but not fast on a GPU")


def _problem_of_triton() -> str | None:
    """Why Triton cannot launch a kernel here, or None. It compiles what launches them when it is first asked."""
    if not _has_triton():
        return NO_TRITON
    from triton.runtime import driver

    try:
        driver.active.get_current_target()
    except (RuntimeError, OSError, AssertionError, subprocess.SubprocessError) as error:
        return "Triton does not work here: " + (" ".join(str(error).split())[:200] or type(error).__name__)
    major, minor = torch.cuda.get_device_capability()
    if torch.version.hip is None and (major, minor) < OLDEST:
        # Their tiles would spill registers there, and some would not fit its shared memory.
        return f"the Triton ops need compute capability {OLDEST[0]}.{OLDEST[1]}, and this GPU has {major}.{minor}"
    return None


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _for_cpu(wanted: str) -> Choice:
    if wanted == "triton":
        if os.environ.get("TRITON_INTERPRET") != "1":
            raise KernelChoiceError(wanted, "it runs on a CPU only under TRITON_INTERPRET=1; use cpp or torch")
        if not _has_triton():
            raise KernelChoiceError(wanted, f"{NO_TRITON}; pip install triton, or use cpp or torch")
        return Choice("triton", f"{VARIABLE} asks for it; interpreted, for tests only")
    if wanted == "torch":
        return Choice("torch", f"{VARIABLE} asks for it")
    try:
        cpu_attention.prepare()
    except BuildError as error:
        if wanted == "cpp":
            raise KernelChoiceError(wanted, f"the C++ ops cannot be built: {error}") from error
        return Choice("torch", f"the C++ ops cannot be built: {error}")
    return Choice("cpp", "matrix products, attention, sampling and known decoder layers in C++, the rest by torch")
