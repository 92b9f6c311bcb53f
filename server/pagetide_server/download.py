"""`pagetide serve MODEL --download-only`: fill the hub's cache with what a server will read, and end."""

from __future__ import annotations

import logging
import sys

from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import PagetideError, SettingError
from pagetide_spec.flags import in_flags
from pagetide_spec.names import EXIT_SETTING

from .checkpoint.files import resolve
from .text.tokenizer import Tokenizer
from .wire.launch import EXIT_START

log = logging.getLogger("pagetide")


def download(config: EngineConfig) -> int:
    """Fetch model and tokenizer; 0, or the exit code that a server would end with for the same reason."""
    try:
        folder = resolve(config, _tell)
        Tokenizer.load(config)  # it may be another repository's
    except SettingError as error:
        print(f"pagetide serve: {in_flags(str(error))}", file=sys.stderr)
        return EXIT_SETTING
    except PagetideError as error:
        print(f"pagetide serve: {in_flags(str(error))}", file=sys.stderr)
        return EXIT_START
    log.info("%s is in %s", config.model, folder)
    return 0


def _tell(stage: str, fraction: float) -> None:
    log.info("%s: %.0f%%", stage, 100 * fraction)
