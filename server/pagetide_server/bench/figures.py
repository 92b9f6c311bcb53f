"""From the outcomes of requests to the figures of a run."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

CUT_OFF = "cut off"
QUANTILES = (0.5, 0.9, 0.99)


@dataclasses.dataclass(slots=True)
class Outcome:
    """One request as its client saw it; times are seconds of one monotonic clock.

    Attributes:
        intended: when it was to be sent; latencies count from here, so that a late sender hides nothing.
        sent, first, ended: sent; the first and the end of its answer. 0 where it did not come to that.
        times: when each event that brought text arrived.
        prompt_tokens, output_tokens, cached_tokens: what `usage` said; None where it said nothing.
        failure: why it failed, in a few words by which failures are counted; empty for an answer to its end.
        detail: the server's own words.
    """

    intended: float
    planned_tokens: int = 0
    sent: float = 0.0
    first: float = 0.0
    ended: float = 0.0
    times: array[float] = dataclasses.field(default_factory=lambda: array("d"))
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    failure: str = ""
    detail: str = ""

    @property
    def tokens(self) -> int:
        """Tokens of the answer; as many as there were events where the server does not report it."""
        return self.output_tokens if self.output_tokens is not None else len(self.times)

    def gaps(self) -> tuple[list[float], float]:
        """Seconds between events, for one token each, and how many tokens each stands for.

        An event may bring several tokens; `usage` says how many there were in all, so a gap is shared out among them.
        """
        seen = [later - earlier for earlier, later in itertools.pairwise(self.times)]
        share = max(1.0, (self.tokens - 1) / len(seen)) if seen else 1.0
        return [gap / share for gap in seen], share


@dataclasses.dataclass(frozen=True, slots=True)
class Distribution:
    """What a latency came to, in seconds. `count` is the number of values, weighted."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


def distribution(values: Sequence[float], weights: Sequence[float] | None = None) -> Distribution | None:
    """The distribution of values, each counted as often as its weight says; None where there is none.

    A percentile is the smallest value that has at least this share of the weight at or below it (nearest rank).
    """
    if not values:
        return None
    ordered: Sequence[float]
    summed: Sequence[float]
    if weights is None:
        ordered, summed = sorted(values), range(1, len(values) + 1)
        mean = sum(values) / len(values)
    else:
        pairs = sorted(zip(values, weights, strict=True))
        ordered, summed = [value for value, _ in pairs], list(itertools.accumulate(weight for _, weight in pairs))
        mean = sum(value * weight for value, weight in pairs) / summed[-1]
    total = summed[-1]

    def at(share: float) -> float:
        # The tolerance keeps 0.9 * 10 from being a little more than 9.
        return ordered[bisect.bisect_left(summed, share * total * (1 - 1e-12))]

    p50, p90, p99 = (at(share) for share in QUANTILES)
    return Distribution(round(total), mean, p50, p90, p99, ordered[-1])


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a run. Rates are over `seconds`, from the first request's begin to the last answer's end."""

    seconds: float
    ok: int
    failed: dict[str, int]
    cut_off: int
    details: dict[str, str]
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    has_usage: bool
    send_lag: Distribution | None
    latencies: dict[str, Distribution | None]

    @property
    def error_rate(self) -> float:
        """Failed requests over all that came to an end."""
        failed = sum(self.failed.values())
        return failed / (failed + self.ok) if failed else 0.0

    @property
    def rates(self) -> dict[str, float]:
        """Requests and tokens per second."""
        counts = {"requests_per_s": self.ok, "input_tokens_per_s": self.prompt_tokens}
        counts["output_tokens_per_s"] = self.output_tokens
        return {name: count / self.seconds if self.seconds else 0.0 for name, count in counts.items()}


def summarize(outcomes: Iterable[Outcome], queue: Distribution | None = None) -> Summary:
    """All figures. Latencies and tokens are those of the requests that were answered to the end."""
    everything = list(outcomes)
    good = [o for o in everything if not o.failure]
    bad = [o for o in everything if o.failure and o.failure != CUT_OFF]
    cached = [o.cached_tokens for o in good if o.cached_tokens is not None]
    ends = [o.ended for o in good]
    return Summary(
        seconds=max(ends) - min(o.intended for o in everything) if ends else 0.0,
        ok=len(good),
        failed=dict(Counter(o.failure for o in bad).most_common()),
        cut_off=len(everything) - len(good) - len(bad),
        details={o.failure: o.detail for o in reversed(bad) if o.detail},
        prompt_tokens=sum(o.planned_tokens if o.prompt_tokens is None else o.prompt_tokens for o in good),
        output_tokens=sum(o.tokens for o in good),
        cached_tokens=sum(cached) if cached else None,
        has_usage=all(o.output_tokens is not None for o in good),
        send_lag=distribution([o.sent - o.intended for o in good]),
        latencies=_latencies(good, queue),
    )


def _latencies(good: Sequence[Outcome], queue: Distribution | None) -> dict[str, Distribution | None]:
    gaps, weights, is_even = array("d"), array("d"), True
    for outcome in good:
        seen, share = outcome.gaps()
        gaps.extend(seen)
        weights.extend([share] * len(seen))
        is_even = is_even and share == 1.0
    return {
        "ttft": distribution([o.first - o.intended for o in good if o.first]),
        "inter_token": distribution(gaps, None if is_even else weights),
        "e2e": distribution([o.ended - o.intended for o in good]),
        "queue": queue,
    }
