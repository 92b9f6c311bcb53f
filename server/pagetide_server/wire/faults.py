"""What the API process learns when the engine fails it."""

from __future__ import annotations

from pagetide_spec.errors import PagetideError


class EngineDead(PagetideError):
    """The engine process has ended; nothing more will come."""


class EngineFailed(PagetideError):
    """The engine could not start, or ended while serving; `exit_code` says which (launch.py)."""

    def __init__(self, message: str, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(message)
