"""What the environment must say before torch is imported, since torch reads it only then. Imports no torch."""

from __future__ import annotations

from .process_memory import use_huge_pages
from .threads import set_up_threads


def prepare_environment() -> None:
    """Set how torch uses threads and memory, where the user has not said it."""
    set_up_threads()
    use_huge_pages()
