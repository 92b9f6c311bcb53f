"""The times and counts of one request to the engine: for metrics, the access line and `usage`."""

from __future__ import annotations

import time

from ..wire.messages import SequenceOutput
from .metrics import ServerMetrics


class Record:
    """One prompt's way through the engine, from its submission to its end; reported to the metrics as it happens.

    Attributes:
        arrival, submitted: when the HTTP request came, and when it went to the engine; all times are seconds of the
            monotonic clock.
        scheduled, first_at, ended_at: of its first step, first token and end; 0 where there is none yet.
        generated: tokens handed on so far, over all sequences.
        reason: why it ended; empty before.
    """

    __slots__ = (
        "_metrics", "arrival", "cached_tokens", "ended_at", "first_at", "generated", "prompt_tokens", "reason",
        "scheduled", "submitted",
    )  # fmt: skip

    def __init__(self, metrics: ServerMetrics, arrival: float, submitted: float, prompt_tokens: int) -> None:
        self._metrics = metrics
        self.arrival, self.submitted, self.prompt_tokens = arrival, submitted, prompt_tokens
        self.scheduled = self.first_at = self.ended_at = 0.0
        self.cached_tokens = 0
        self.generated = 0
        self.reason = ""

    def begun(self, output: SequenceOutput) -> None:
        """The first output is here: the prompt has been computed. Later ones change nothing."""
        if self.scheduled:
            return
        self.scheduled = output.scheduled or self.submitted
        self.cached_tokens = output.cached_tokens
        self._metrics.prefilled(self.prompt_tokens, self.scheduled - self.submitted)

    def tokens(self, count: int, first: bool, seconds: float, now: float) -> None:
        """`count` tokens of one sequence; `first`: they begin with its first one; `seconds` since the ones before."""
        if not self.first_at:
            self.first_at = now
            self._metrics.first_token(now - self.arrival)
        self.generated += count
        self._metrics.tokens(count, count - first, seconds)

    def finish(self, reason: str) -> None:
        """The request ended; later calls change nothing."""
        if not self.ended_at:
            self.ended_at, self.reason = time.monotonic(), reason
            seconds = self.ended_at - self.arrival
            self._metrics.finished(reason, self.prompt_tokens, self.generated, seconds)
            if self.first_at:
                self._metrics.answered(self.first_at - self.scheduled, self.ended_at - self.first_at)

    def dismiss(self) -> None:
        """The engine refused the request: it counts nowhere."""
        self.ended_at = time.monotonic()
