"""What the condition Ready of a service says, as the operator writes it and the gateway reads it."""

from __future__ import annotations

import re

from .names import CONTAINER_SERVER, EXIT_SETTING

# Nothing new is made of such a service; the pods of its last valid version stay.
INVALID = frozenset(("InvalidSpec", "InvalidName"))
_WRONG_SETTING = re.compile(rf"container {CONTAINER_SERVER} ended with exit code {EXIT_SETTING}\b")


def crash_text(container: str, exit_code: object, last_words: str = "") -> str:
    """How a container exited, with the last line of its log."""
    return f"container {container} ended with exit code {exit_code}" + (f": {last_words}" if last_words else "")


def needs_change(reason: str, message: str) -> bool:
    """Whether a service that is not Ready for this reason stays so until somebody changes it: no waiting helps."""
    if reason == "CrashLoopBackOff":
        return bool(_WRONG_SETTING.match(message))
    return reason in INVALID or reason == "InvalidImageName"
