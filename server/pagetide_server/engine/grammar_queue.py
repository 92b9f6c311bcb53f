"""Requests whose structure is still being compiled: the scheduler does not know of them yet."""

from __future__ import annotations

from .open_request import OpenRequest
from .protocols import Compiler


class GrammarQueue:
    """Holds requests from their arrival until their grammar is there, or will never be."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._entries: dict[str, OpenRequest] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def oldest_arrival(self) -> float | None:
        """When the oldest one came, or None."""
        return min((entry.request.arrival for entry in self._entries.values()), default=None)

    def put(self, entry: OpenRequest) -> None:
        """Start to compile a request's structure."""
        structure = entry.request.params.structure
        assert structure is not None
        entry.compilation = self._compiler.compile(structure)
        self._entries[entry.request.request_id] = entry

    def withdraw(self, request_id: str, index: int | None) -> list[int] | None:
        """Abort one answer or all of a request; the indices that ended by it, or None where it does not wait here."""
        entry = self._entries.get(request_id)
        if entry is None:
            return None
        ended = entry.withdraw(index)
        if not entry.left:
            del self._entries[request_id]
        return ended

    def has_compiled(self) -> bool:
        """Whether `take_compiled` would return something."""
        return any(_is_compiled(entry) for entry in self._entries.values())

    def take_compiled(self) -> list[OpenRequest]:
        """Those that need not wait any longer; they leave the queue."""
        found = [entry for entry in self._entries.values() if _is_compiled(entry)]
        for entry in found:
            del self._entries[entry.request.request_id]
        return found

    def close(self) -> None:
        """End the threads that compile."""
        self._compiler.close()


def _is_compiled(entry: OpenRequest) -> bool:
    return entry.compilation is not None and entry.compilation.done()
