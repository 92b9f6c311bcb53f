"""Which device computes: a GPU where there is one."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch

from pagetide_spec.errors import PagetideError

log = logging.getLogger(__name__)

# Variables that choose among GPUs; those of AMD's layers for a torch that is built for them.
_CHOOSE, _CHOOSE_OF_AMD = ("CUDA_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def find_device(devices: Path = Path("/dev")) -> torch.device:
    """The GPU, or the CPU where there is none or a variable such as CUDA_VISIBLE_DEVICES hides it.

    `devices` is where the system shows its own.

    Raises:
        PagetideError: there is a GPU that torch cannot use. A server on the CPU would do its work, a hundred times
            slower than what was paid for.
    """
    if torch.cuda.is_available():
        return torch.device("cuda")
    node = _unused(devices)
    if node is None:
        return torch.device("cpu")
    if torch.version.cuda is None and torch.version.hip is None:
        log.warning("this machine has a GPU (%s), but torch %s is built for the CPU only", node, torch.__version__)
        return torch.device("cpu")
    raise PagetideError(
        f"this machine has a GPU ({node}) that torch {torch.__version__} cannot use: {_reason()}; update its driver, "
        "install a torch for it, or set CUDA_VISIBLE_DEVICES to nothing to serve on the CPU"
    )


def _unused(devices: Path) -> Path | None:
    """The file of a GPU that torch should see, if there is one."""
    is_for_amd = torch.version.hip is not None
    if any(map(_hides_all, _CHOOSE + (_CHOOSE_OF_AMD if is_for_amd else ()))):
        return None
    # An AMD GPU is within many processors, and of no use for a torch that was built for CUDA.
    pattern = "kfd" if is_for_amd else "nvidia[0-9]*"
    return min(devices.glob(pattern), default=None)


def _hides_all(variable: str) -> bool:
    """Whether an environment variable chooses no GPU: what follows the first entry that is none does not count."""
    return os.environ.get(variable, "0").split(",")[0].strip() in ("", "-1", "NoDevFiles")


def _reason() -> str:
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return " ".join(str(error).split())[:200]
    return "no device is left to it"
