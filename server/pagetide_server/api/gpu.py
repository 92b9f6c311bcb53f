"""What NVML says of the GPUs that the engine may use. Whatever cannot be read is left out; nothing here can fail.

`nvidia-ml-py` is read where it is installed. In a container NVML shows the container's own GPUs.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import os
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

PACKAGE = "pynvml"


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU now. `busy`: share of the last second in which it computed; memory in bytes; None: it does not say."""

    index: str
    busy: float | None
    used: float | None
    total: float | None


class Gpus:
    """Reads all GPUs when asked; looks for NVML once, at the first time.

    Args:
        visible: as in CUDA_VISIBLE_DEVICES: indices or beginnings of UUIDs; None: all.
    """

    def __init__(self, visible: str | None = os.environ.get("CUDA_VISIBLE_DEVICES")) -> None:
        self._visible = None if visible is None else [part.strip() for part in visible.split(",") if part.strip()]
        self._nvml: Any = None
        self._has_looked = False

    def read(self) -> list[Gpu]:
        """Every GPU that can be read; none where there is no NVML."""
        if not self._has_looked:
            self._has_looked, self._nvml = True, _started()
        if self._nvml is None:
            return []
        count = _told(self._nvml.nvmlDeviceGetCount, self._nvml.NVMLError) or 0
        found = (self._one(index) for index in range(count))
        return [gpu for gpu in found if gpu is not None]

    def _one(self, index: int) -> Gpu | None:
        nvml, error = self._nvml, self._nvml.NVMLError
        handle = _told(lambda: nvml.nvmlDeviceGetHandleByIndex(index), error)
        if handle is None or not self._is_visible(index, _told(lambda: nvml.nvmlDeviceGetUUID(handle), error)):
            return None
        rates = _told(lambda: nvml.nvmlDeviceGetUtilizationRates(handle), error)
        memory = _told(lambda: nvml.nvmlDeviceGetMemoryInfo(handle), error)
        return Gpu(
            str(index),
            busy=None if rates is None else rates.gpu / 100,
            used=None if memory is None else float(memory.used),
            total=None if memory is None else float(memory.total),
        )

    def _is_visible(self, index: int, uuid: Any) -> bool:
        if self._visible is None:
            return True
        name = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
        return any(part == str(index) or (not part.isdecimal() and name.startswith(part)) for part in self._visible)


def _started() -> Any:
    """NVML, ready to be asked; None where there is none."""
    try:
        nvml = importlib.import_module(PACKAGE)
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except (nvml.NVMLError, OSError) as error:
        log.debug("no figures of GPUs: %s", error)
        return None
    return nvml


def _told(ask: Callable[[], Any], error: type[Exception]) -> Any:
    """An answer, or None where this GPU, or its slice, has none."""
    try:
        return ask()
    except error:
        return None
