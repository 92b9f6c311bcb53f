"""Import what builds networks, without the compiler of Triton where nothing is compiled with it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


def import_transformers(needs_triton: bool) -> None:
    """Import transformers' base of all networks.

    On its way torch looks whether Triton can be imported, whatever the device: 70 MB of it would then lie in memory for
    nothing. Unless it is needed, that look finds none. Who imports Triton later gets it; a thread that does so during
    this import finds none.
    """
    with contextlib.nullcontext() if needs_triton else _hidden("triton"):
        import transformers.modeling_utils  # noqa: F401


@contextlib.contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Let the import of a package fail, unless it has been imported already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]
