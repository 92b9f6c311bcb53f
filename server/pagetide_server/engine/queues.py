"""Where the sequences are: waiting, running or swapped out, each line in order of importance."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from operator import attrgetter

from .sequence import Sequence, Status

_ORDER = attrgetter("order")


class SequenceQueue:
    """Sequences in ascending `order`. Finding a place is O(log n); closing the gap moves machine words only.

    Attributes:
        items: the sequences; the planner's inner loop reads them, everybody else goes through the methods.
    """

    def __init__(self) -> None:
        self.items: list[Sequence] = []

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.items)

    @property
    def head(self) -> Sequence | None:
        """The most important one, or None."""
        return self.items[0] if self.items else None

    def insert(self, sequence: Sequence) -> None:
        """Put a sequence in its place."""
        insort(self.items, sequence, key=_ORDER)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that is in this line."""
        at = bisect_left(self.items, sequence.order, key=_ORDER)
        if at == len(self.items) or self.items[at] is not sequence:
            raise KeyError(sequence)
        del self.items[at]


class Queues:
    """All sequences that have not ended.

    Attributes:
        never_scheduled: leading sequences of such requests, in the order in which they were admitted (all are in
            `waiting`).
        requests: the unfinished sequences of each request, also those that wait for the prompt to be computed.
        slots: slots of the running batch that are taken or kept.
    """

    def __init__(self) -> None:
        self.waiting, self.running, self.swapped = SequenceQueue(), SequenceQueue(), SequenceQueue()
        self.never_scheduled: OrderedDict[Sequence, None] = OrderedDict()
        self.requests: dict[str, list[Sequence]] = {}
        self.slots = 0

    def arrive(self, sequence: Sequence) -> None:
        """Let a request's leading sequence wait. One that comes late, when its grammar is compiled, keeps its age."""
        arrival = sequence.request.arrival
        is_late = bool(self.never_scheduled) and next(reversed(self.never_scheduled)).request.arrival > arrival
        self.never_scheduled[sequence] = None
        if is_late:
            self.never_scheduled = OrderedDict.fromkeys(sorted(self.never_scheduled, key=lambda s: s.request.arrival))
        self.waiting.insert(sequence)

    @property
    def next_up(self) -> Sequence | None:
        """The most important sequence that is not running, or None.

        In order of arrival, a swapped-out sequence always goes before a request that was never admitted.
        """
        waiting, swapped = self.waiting.head, self.swapped.head
        if waiting is None or swapped is None:
            return waiting or swapped
        return min(waiting, swapped, key=_ORDER)

    def move(self, sequence: Sequence, status: Status) -> None:
        """Put a sequence into the line of its new status; FINISHED is no line."""
        self.leave(sequence)
        sequence.status = status
        if status is Status.RUNNING:
            self.running.insert(sequence)
            self.slots += sequence.slots
        elif status is not Status.FINISHED:
            (self.waiting if status is Status.WAITING else self.swapped).insert(sequence)

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out of the line it is in."""
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
            self.slots -= sequence.slots
        elif sequence.status is Status.SWAPPED:
            self.swapped.remove(sequence)
        elif sequence.status is Status.WAITING:
            self.never_scheduled.pop(sequence, None)
            self.waiting.remove(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Strike a sequence off its request."""
        left = self.requests[sequence.request_id]
        left.remove(sequence)
        if not left:
            del self.requests[sequence.request_id]
