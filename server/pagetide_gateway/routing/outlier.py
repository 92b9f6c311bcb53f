"""When to send a replica nothing for a while, and how it comes back. Pure: times are arguments.

Polls of `/readyz` find what is down. This finds what says that it is well and fails, or takes requests and hangs.
"""

from __future__ import annotations

import dataclasses

# So many failures with no success between them.
FAILURES_TO_EJECT = 3
FIRST_EJECTION_S = 5.0
LONGEST_EJECTION_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """How a replica has done lately. `ejections`: in a row, with no success since; `until`: nothing before."""

    failures: int = 0
    ejections: int = 0
    until: float = 0.0


GOOD = Standing()


def after_failure(standing: Standing, now: float, *, is_stall: bool = False) -> Standing:
    """One more failure. A stall, or a failure on trial, ejects at once."""
    failures = standing.failures + 1
    if failures < FAILURES_TO_EJECT and not standing.ejections and not is_stall:
        return dataclasses.replace(standing, failures=failures)
    if now < standing.until:  # a request from before the ejection
        return standing
    ejections = standing.ejections + 1
    pause = min(LONGEST_EJECTION_S, FIRST_EJECTION_S * 2 ** (ejections - 1))
    return Standing(failures, ejections, now + pause)


def takes_part(standing: Standing, now: float, in_flight: int) -> bool:
    """Whether it may have a request. After its pause it is on trial: one at a time, until one succeeds."""
    return not standing.ejections or (now >= standing.until and in_flight == 0)
