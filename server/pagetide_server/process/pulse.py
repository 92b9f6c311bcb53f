"""Is the engine alive? Decided from its heartbeats and the time alone."""

from __future__ import annotations

import dataclasses

from ..wire.messages import Heartbeat

# A heartbeat is sent every second by a thread of its own, so silence means a stopped or frozen process.
HEARTBEAT_SECONDS = 1.0
SILENCE_SECONDS = 6.0
# How long a step may take: so long at least, and so many times the engine's own estimate for its longest one.
STEP_SECONDS = 120.0
STEP_FACTOR = 10.0
# Between two steps lies no work worth mentioning.
IDLE_WITH_WORK_SECONDS = 20.0


@dataclasses.dataclass
class Pulse:
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

    def problem(self, now: float) -> str | None:
        """Why the engine is taken for dead or stuck, or None. Before the first heartbeat nothing is known."""
        last = self.last
        if last is None:
            return None
        if now - self.heard > SILENCE_SECONDS:
            return f"the engine process has given no sign of life for {now - self.heard:.0f} s"
        if last.step_started is not None:
            took = last.time - last.step_started
            limit = max(STEP_SECONDS, STEP_FACTOR * self.step_seconds)
            return f"one engine step has been running for {took:.0f} s" if took > limit else None
        if last.has_work and now - self.progress > IDLE_WITH_WORK_SECONDS:
            return f"the engine has work but has made no step for {now - self.progress:.0f} s"
        return None
