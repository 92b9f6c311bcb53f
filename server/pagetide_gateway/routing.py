"""Which replica takes a request: a pure choice among those that may."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from .registry import Replica


@dataclasses.dataclass(frozen=True)
class Ask:
    """What is known of a request when its replica is chosen; `body` is the JSON as the client sent it."""

    model: str
    path: str
    body: bytes
    session: str | None = None


class Router(Protocol):
    """Chooses among replicas that are ready, not draining and not yet tried for this request."""

    def choose(self, ask: Ask, candidates: Sequence[Replica]) -> Replica:
        """One of `candidates`, which has at least one entry."""
        ...


class RoundRobin:
    """Each service's replicas in turn.

    Keeps the name of the last choice and not a counter, so that a replica that comes or goes shifts nobody else's turn.
    """

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def choose(self, ask: Ask, candidates: Sequence[Replica]) -> Replica:
        """The next one by name after the last choice for this model."""
        last = self._last.get(ask.model, "")
        later = [r for r in candidates if r.name > last]
        chosen = min(later or candidates, key=lambda r: r.name)
        self._last[ask.model] = chosen.name
        return chosen
