"""Is the engine alive? Decided from its heartbeats, the time, and what the system says of a silent process. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ..wire.messages import Heartbeat
from .process_state import ProcessState

# A heartbeat is sent every second by a thread of its own, so silence means a stopped or frozen process, unless that
# still computes: on a crowded machine a library's call that lets no other thread run may take as long as this.
HEARTBEAT_SECONDS = 1.0
SILENCE_SECONDS = 6.0
BUSY_SILENCE_SECONDS = 60.0
BUSY_CPU_SECONDS = 0.05
# How long a step may take: so long at least, and so many times the engine's own estimate for its longest one.
STEP_SECONDS = 120.0
STEP_FACTOR = 10.0
# Between two steps lies no work worth mentioning.
IDLE_WITH_WORK_SECONDS = 20.0


@dataclasses.dataclass
class Liveness:
    """The newest heartbeat, when it came, and since when the count of steps has stood still.

    `step_seconds` is the engine's estimate for its longest step.
    """

    step_seconds: float = 0.0
    last: Heartbeat | None = None
    heard: float = 0.0
    progress: float = 0.0

    def beat(self, heartbeat: Heartbeat, now: float) -> None:
        """Take in a heartbeat that arrived at `now`."""
        idle = not heartbeat.has_work and heartbeat.step_started is None
        if self.last is None or idle or heartbeat.steps != self.last.steps:
            self.progress = now
        self.last, self.heard = heartbeat, now

    def problem(self, now: float, look: Callable[[], ProcessState | None] = lambda: None) -> str | None:
        """Why the engine is taken for dead or stuck, or None. Before the first heartbeat nothing is known.

        `look` reports a process that has been silent for long.
        """
        last = self.last
        if last is None:
            return None
        silence = now - self.heard
        if silence > SILENCE_SECONDS and not (silence < BUSY_SILENCE_SECONDS and self._computes(look())):
            return f"the engine process has given no sign of life for {silence:.0f} s"
        if last.step_started is not None:
            took = last.time - last.step_started
            limit = max(STEP_SECONDS, STEP_FACTOR * self.step_seconds)
            return f"one engine step has been running for {took:.0f} s" if took > limit else None
        if last.has_work and now - self.progress > IDLE_WITH_WORK_SECONDS:
            return f"the engine has work but has made no step for {now - self.progress:.0f} s"
        return None

    def _computes(self, found: ProcessState | None) -> bool:
        """Whether a process runs, and has computed since its last heartbeat."""
        if found is None or found.is_stopped or self.last is None:
            return False
        return found.cpu_seconds - self.last.cpu_seconds >= BUSY_CPU_SECONDS
