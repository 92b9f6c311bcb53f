"""One replica: what is known of it, and the exchanges that are under way with it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from ..routing.outlier import GOOD, Standing
from ..routing.replica_load import Figures


@dataclasses.dataclass(frozen=True)
class Health:
    """What the last polls of `/readyz` said.

    `reason` says why a replica is not ready; where `is_told` it is in the replica's own words.
    """

    ready: bool = False
    reason: str = "starting"
    is_told: bool = False
    # Polls in a row that got no answer in time.
    misses: int = 0


@dataclasses.dataclass(eq=False)
class Replica:
    """One server process or pod.

    `url` has no trailing slash; `in_flight` counts requests sent and not yet answered, `streams` those that stream.
    `blocked` counts those whose next bytes wait for a client that does not read.
    `heard` is when it last showed a sign of work; `has_counters` whether its metrics show work that nobody here sees,
    `says_busy` whether they show any now.
    `figures` are what those metrics said last.
    """

    name: str
    url: str
    health: Health = Health()
    draining: bool = False
    is_admitted: bool = True
    in_flight: int = 0
    streams: int = 0
    blocked: int = 0
    standing: Standing = GOOD
    heard: float = 0.0
    work: float = -1.0
    has_counters: bool = False
    says_busy: bool = False
    figures: Figures | None = None
    _ends: set[Callable[[str], object]] = dataclasses.field(default_factory=set)

    @contextlib.contextmanager
    def exchange(self, end: Callable[[str], object]) -> Iterator[None]:
        """Within this context, `lose` calls `end` with its reason."""
        self._ends.add(end)
        try:
            yield
        finally:
            self._ends.discard(end)

    def lose(self, why: str) -> None:
        """Give up on all that is under way with this replica, so that its clients need not wait any longer."""
        for end in list(self._ends):
            end(why)

    @property
    def is_available(self) -> bool:
        """May be given a new request."""
        return self.health.ready and self.is_admitted and not self.draining

    @property
    def state(self) -> str:
        """One line for people."""
        if self.draining:
            return f"{self.name} draining"
        if self.health.ready and not self.is_admitted:
            return f"{self.name} not ready (its pod is not)"
        return f"{self.name} ready" if self.health.ready else f"{self.name} not ready ({self.health.reason})"
