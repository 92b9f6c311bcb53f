"""What to start and what to stop: pure decisions over desired and running replicas."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import Literal

from pagetide_spec.names import EXIT_SETTING

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0
# Loading takes all of a machine's disk and cores for a while; more at once make no replica ready sooner.
MOST_LOADING = 2
# A replica that stayed up this long has its earlier failures forgiven.
STABLE_S = 60.0


@dataclasses.dataclass(frozen=True)
class Seen:
    """One replica as it stands.

    Attributes:
        is_loading: it runs and has not been ready yet.
        broken: it will never start.
        restart_at: not before this time.
    """

    name: str
    is_running: bool = False
    is_loading: bool = False
    is_stopping: bool = False
    broken: bool = False
    restart_at: float = 0.0


@dataclasses.dataclass(frozen=True)
class Action:
    """Start or stop one replica."""

    do: Literal["start", "stop"]
    name: str


def plan(desired: Collection[str], seen: Iterable[Seen], now: float) -> list[Action]:
    """Actions that bring what runs to what is desired; none where it is so already. Stops come first.

    No more than MOST_LOADING replicas load at once; the others start as those become ready.
    """
    by_name = {replica.name: replica for replica in seen}
    stops = [
        Action("stop", r.name) for r in by_name.values() if r.is_running and not r.is_stopping and r.name not in desired
    ]
    starts = [Action("start", name) for name in desired if _may_start(by_name.get(name), now)]
    loading = sum(replica.is_loading for replica in by_name.values())
    return stops + starts[: max(0, MOST_LOADING - loading)]


def _may_start(replica: Seen | None, now: float) -> bool:
    if replica is None:
        return True
    return not (replica.is_running or replica.broken) and now >= replica.restart_at


def failures_after(failures: int, ran_s: float) -> int:
    """Failures in a row, counting the one that has just ended a run of `ran_s` seconds."""
    return 1 if ran_s >= STABLE_S else failures + 1


def restart_delay(failures: int) -> float:
    """Seconds to wait before the next start: doubles with each failure in a row, up to LONGEST_DELAY_S."""
    return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(failures - 1, 16))


def is_broken(exit_code: int, was_ready: bool) -> bool:
    """Whether a replica that ended so can never start."""
    return exit_code == EXIT_SETTING and not was_ready
