"""The last scrapes of one server, and what they come to. Time is an argument; no I/O."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math

from .samples import Buckets, Sample

SCRAPE_S = 5.0
WINDOW_S = 30.0
# What changes fast: demand that is growing, and whether a server has been full all the time.
SHORT_S = 10.0
# A queue that has shrunk to this part of what it was within SHORT_S is being worked off.
WORKED_OFF = 0.75
# A server that has not been scraped for so long has no metrics: three scrapes.
STALE_S = 16.0


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """One server over its window.

    Attributes:
        capacity: sequences that it could run at once now: the engine's own admissible sequences.
        queued: requests that got a batch slot within the window, by the time that they had waited.
        kv_used, kv_cached, kv_capacity: tokens.
        query_tokens, hit_tokens: prompt tokens looked up and found in the prefix cache within the window.
        demand: uncached prompt tokens per second that clients ask of it, whether or not it keeps up.
        backlog: uncached prompt tokens of the requests that wait in it, where it lacks room for them.
        served: uncached prompt tokens per second that it computed.
        full_rate: the same for as long as requests waited in it at every scrape, so that it is the most it can do; 0
            where that was less than SHORT_S seconds.
        lacks_room: requests have been waiting in it at the last two scrapes, and the queue is not on its way to its
            end: what a burst leaves for a moment is no lack of capacity, nor is what is being worked off.
        is_busy: it has or had a request within the window.
    """

    running: float = 0.0
    waiting: float = 0.0
    capacity: float = 1.0
    oldest_waiting: float = 0.0
    queued: Buckets = ()
    kv_used: float = 0.0
    kv_cached: float = 0.0
    kv_capacity: float = 0.0
    query_tokens: float = 0.0
    hit_tokens: float = 0.0
    demand: float = 0.0
    backlog: float = 0.0
    served: float = 0.0
    full_rate: float = 0.0
    lacks_room: bool = False
    is_busy: bool = False

    @property
    def in_flight(self) -> float:
        """Requests that it has, running or waiting."""
        return self.running + self.waiting


class Window:
    """The scrapes of one life of one server. A server that restarts starts a new window."""

    def __init__(self) -> None:
        self._samples: collections.deque[Sample] = collections.deque()
        self._capacity: float | None = None

    def add(self, sample: Sample) -> None:
        """Take in a scrape; one that is not later than the last is dropped, unless the clock was set back."""
        if self._samples:
            last = self._samples[-1]
            is_set_back = sample.at < last.at - STALE_S
            if sample.at <= last.at and not is_set_back:
                return
            if is_set_back or _has_restarted(last, sample):
                self._samples.clear()
                self._capacity = None
        self._samples.append(sample)
        # The one before the window's begin is what its differences count from.
        while len(self._samples) > 2 and self._samples[1].at <= sample.at - WINDOW_S:
            self._samples.popleft()
        self._capacity = _capacity(sample, self._capacity)

    @property
    def last_at(self) -> float:
        """When the server was last heard; minus infinity where never."""
        return self._samples[-1].at if self._samples else -math.inf

    def load(self, now: float) -> Load | None:
        """What the window comes to, or None where the server has not been scraped of late."""
        if now - self.last_at > STALE_S:
            return None
        first, last = self._samples[0], self._samples[-1]
        uncached = _uncached(first, last)
        seconds = last.at - first.at
        return Load(
            running=last.running,
            waiting=last.waiting,
            capacity=self._capacity or last.max_seqs,
            oldest_waiting=last.oldest_waiting,
            queued=difference(first.queue, last.queue),
            kv_used=last.kv_used,
            kv_cached=last.kv_cached,
            kv_capacity=last.kv_capacity,
            query_tokens=last.query_tokens - first.query_tokens,
            hit_tokens=last.hit_tokens - first.hit_tokens,
            demand=max(self._demand(0), self._demand(len(self._samples) - self._short())),
            backlog=last.waiting * self._tokens_each() if self._lacks_room() else 0.0,
            served=uncached / seconds if seconds else 0.0,
            full_rate=self._full_rate(),
            lacks_room=self._lacks_room(),
            is_busy=last.prefills > first.prefills or any(s.running or s.waiting for s in self._samples),
        )

    def _short(self) -> int:
        """How many of the last scrapes span SHORT_S seconds."""
        begin = self._samples[-1].at - SHORT_S - 0.5
        return sum(s.at >= begin for s in self._samples)

    def _full_rate(self) -> float:
        full = list(itertools.takewhile(lambda s: s.waiting >= 1, reversed(self._samples)))
        seconds = full[0].at - full[-1].at if full else 0.0
        return _uncached(full[-1], full[0]) / seconds if seconds >= SHORT_S - 0.5 else 0.0

    def _lacks_room(self) -> bool:
        recent = list(self._samples)[-self._short() :]
        if len(recent) < 2 or not recent[-1].waiting or not recent[-2].waiting:
            return False
        return recent[-1].waiting > WORKED_OFF * max(s.waiting for s in recent)

    def _demand(self, begin: int) -> float:
        """Uncached prompt tokens per second since scrape number `begin`: those computed, and those that piled up."""
        first, last = self._samples[begin], self._samples[-1]
        seconds = last.at - first.at
        if not seconds:
            return 0.0
        # Of a burst that is still growing; without one, the short window is no better than the long one.
        if begin and last.waiting <= first.waiting:
            return 0.0
        piled = (last.waiting - first.waiting) * self._tokens_each()
        return max(0.0, _uncached(first, last) + piled) / seconds

    def _tokens_each(self) -> float:
        """Uncached prompt tokens of one request."""
        first, last = self._samples[0], self._samples[-1]
        count = last.prefills - first.prefills
        return _uncached(first, last) / count if count else 0.0


def _has_restarted(before: Sample, after: Sample) -> bool:
    """Whether a total went back: another process answers at this address."""
    went_back = any(
        getattr(after, name) < getattr(before, name)
        for name in ("prompt_tokens", "query_tokens", "hit_tokens", "prefills")
    )
    return went_back or count_of(after.queue) < count_of(before.queue)


def _capacity(sample: Sample, known: float | None) -> float | None:
    """Sequences that the engine could run now: running over its own utilization, which is 0 while it is idle."""
    if sample.running and sample.batch_utilization > 0:
        places = min(sample.max_seqs, sample.running / sample.batch_utilization)
        return min(sample.max_seqs, max(sample.running, round(places)))
    return min(known, sample.max_seqs) if known is not None else None


def _uncached(first: Sample, last: Sample) -> float:
    hits = last.hit_tokens - first.hit_tokens
    return max(0.0, last.prompt_tokens - first.prompt_tokens - hits)


def count_of(buckets: Buckets) -> float:
    """How many values a histogram has."""
    return buckets[-1][1] if buckets else 0.0


def difference(before: Buckets, after: Buckets) -> Buckets:
    """What a histogram has gained since `before`; all of `after` where the buckets are others."""
    if [bound for bound, _ in before] != [bound for bound, _ in after]:
        return after if not before else ()
    return tuple((bound, max(0.0, n - m)) for (bound, n), (_, m) in zip(after, before, strict=True))


def merged(parts: list[Buckets]) -> Buckets:
    """The histogram of all values together; parts with other buckets than the first one's are left out."""
    full = [part for part in parts if part]
    if not full:
        return ()
    bounds = [bound for bound, _ in full[0]]
    same = [part for part in full if [bound for bound, _ in part] == bounds]
    return tuple((bound, sum(part[i][1] for part in same)) for i, bound in enumerate(bounds))


def quantile(buckets: Buckets, share: float) -> float:
    """The value at or below which `share` of all lie, linear within its bucket; 0 where there are none.

    In the last bucket, which has no upper bound, it is that bucket's lower one.
    """
    rank = share * count_of(buckets)
    if not rank:
        return 0.0
    low, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            return low if math.isinf(bound) else low + (bound - low) * (rank - below) / (count - below)
        low, below = bound, count
    return low
