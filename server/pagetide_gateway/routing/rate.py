"""How fast replicas prefill, from what was measured. Pure: times are arguments."""

from __future__ import annotations

# Tokens a second until any replica has shown how many.
DEFAULT_RATE = 10_000.0
# Older samples count less with each new one, and less with time.
_FADE = 0.95
_HALF_LIFE_S = 60.0
# What is known of the others counts for a replica as much as so many seconds of its own.
_PRIOR_S = 0.2
_LEAST_S = 1e-4


class FleetRate:
    """The mean of all replicas of a service: what one is taken to do until it has shown otherwise.

    Without it, a replica that nobody has measured would look slow beside those that are faster than the default, get
    nothing, and never be measured.
    """

    def __init__(self) -> None:
        self._tokens, self._seconds = DEFAULT_RATE * _PRIOR_S, _PRIOR_S

    @property
    def value(self) -> float:
        """Tokens a second."""
        return self._tokens / self._seconds

    def add(self, tokens: float, seconds: float) -> None:
        """One more prefill."""
        self._tokens = self._tokens * _FADE + tokens
        self._seconds = self._seconds * _FADE + seconds


class PrefillRate:
    """One replica's rate. What it showed long ago fades: a replica that was slow once must not be shunned for ever."""

    def __init__(self, fleet: FleetRate) -> None:
        self._fleet = fleet
        self._tokens = self._seconds = 0.0
        self._at = 0.0

    def add(self, tokens: float, seconds: float, now: float) -> None:
        """It prefilled so many tokens in so many seconds. Of prefills in one step the first has all the seconds."""
        seconds = max(_LEAST_S, seconds)
        weight = _FADE * self._weight(now)
        self._tokens = self._tokens * weight + tokens
        self._seconds = self._seconds * weight + seconds
        self._at = now
        self._fleet.add(tokens, seconds)

    def value(self, now: float) -> float:
        """Tokens a second."""
        weight = self._weight(now)
        return (self._tokens * weight + self._fleet.value * _PRIOR_S) / (self._seconds * weight + _PRIOR_S)

    def _weight(self, now: float) -> float:
        return float(0.5 ** (max(0.0, now - self._at) / _HALF_LIFE_S))
