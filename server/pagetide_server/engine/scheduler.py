"""The scheduler: which sequences compute what in the next step. Arithmetic only: no torch, no clock, no log.

    step = scheduler.schedule()
    ... execute it, sample a token for each of step.sampling() ...
    settled = scheduler.settle(step, token_ids)

Where the tokens of a step are long in coming, the next one can be planned and begun before they are known:

    scheduler.advance(step)
    if scheduler.can_schedule_ahead(): following = scheduler.schedule()
    settled = scheduler.settle(step, token_ids)
    scheduler.advance(following)

Requests may be added and aborted at any time, also between `schedule` and `settle`.
"""

from __future__ import annotations

from collections import abc

from ..wire.messages import AddRequest, EngineStats
from . import integrity, reporting, settling
from .limits import RequestRefused, SchedulerConfig, answers, check_request, final_length
from .planning import StepPlan
from .preemption import none_is_preempted
from .prefix_lengths import PrefixLengths
from .queues import Queues
from .sequence import Sequence, Status, Step
from .settling import Settled
from .tables import BlockEvent, BlockTables
from .totals import Totals

__all__ = ["RequestRefused", "Scheduler", "SchedulerConfig", "Settled"]


class Scheduler:
    """Continuous batching over paged KV memory.

    Policy `fcfs`: requests start in order of arrival. Policy `priority`: lower value first, then arrival; a waiting
    request of a better priority takes slots and blocks from running ones of a worse priority (never of its own).
    Priorities are strict: a steady stream of better requests keeps worse ones waiting. Within a priority no request is
    overtaken.

    Attributes:
        prefix_lengths: statistic of the prefixes that prompts share.
    """

    def __init__(self, config: SchedulerConfig, on_block_event: BlockEvent | None = None) -> None:
        """`on_block_event(event, request_id, index, block_ids)` is called each time a sequence gets or releases device
        blocks; blocks found in the prefix cache or shared with a sibling count as allocated."""
        self.config = config
        self.prefix_lengths = PrefixLengths(config.block_size)
        self._tables = BlockTables(config, on_block_event)
        self._queues = Queues()
        self._totals = Totals()
        self._arrivals = 0

    # ---- requests come and go

    def add(self, request: AddRequest) -> None:
        """Queue a request.

        Raises:
            RequestRefused: it can never run (`invalid`), or too many wait already (`queue_full`).
        """
        self.check(request)
        self.admit(request)

    def check(self, request: AddRequest, waiting_elsewhere: int = 0) -> None:
        """Refuse a request as `add` does, but do not queue it.

        Args:
            request: the request.
            waiting_elsewhere: requests that will be admitted later and count as waiting.

        Raises:
            RequestRefused: it can never run (`invalid`), or too many wait already (`queue_full`).
        """
        if request.request_id in self._queues.requests:
            raise RequestRefused("invalid", f"request_id {request.request_id!r} is in use; take another")
        check_request(request, self.config)
        # A request that will get a free slot in the next step does not count as waiting.
        free_slots = max(0, self.config.max_num_seqs - self._queues.slots)
        if len(self._queues.never_scheduled) + waiting_elsewhere >= self.config.max_queue_len + free_slots:
            raise RequestRefused(
                "queue_full", f"max_queue_len of {self.config.max_queue_len} requests wait already; try again later"
            )

    def reserve(self) -> int:
        """The next place in the order of arrival, for a request that is admitted later."""
        self._arrivals += 1
        return self._arrivals

    def admit(self, request: AddRequest, place: int | None = None) -> None:
        """Queue a request that `check` has let pass, at the `place` that it reserved; the default is the next."""
        arrival = self.reserve() if place is None else place
        first, *rest = [self._answer(request, arrival, i) for i in range(answers(request.params))]
        first.pending = rest
        self._queues.requests[request.request_id] = [first, *rest]
        self._queues.arrive(first)

    def _answer(self, request: AddRequest, arrival: int, index: int) -> Sequence:
        answer = Sequence(request, arrival, index)
        answer.order = (request.priority if self.config.policy == "priority" else 0, arrival, index)
        answer.limit = final_length(request, self.config)
        # With a structure, an end token comes for ignore_eos only where nothing else may (penalties.py).
        goes_on = request.params.ignore_eos and request.params.structure is None
        eos = frozenset() if goes_on else self.config.eos_token_ids
        answer.end_ids = eos | frozenset(request.params.stop_token_ids)
        if request.params.structure is not None:
            # For min_tokens, too, it comes only where nothing else may: waiting would repeat it.
            answer.min_length = answer.prompt_len
        return answer

    def abort(self, request_id: str, index: int | None = None) -> list[Sequence]:
        """End a request, or one of its answers, and free its blocks at once; returns the answers that ended.

        An unknown id or index (the request may have ended in the meantime) ends nothing.
        """
        found = [s for s in self._queues.requests.get(request_id, ()) if index is None or s.index == index]
        if index is not None:
            found = [self._exchange_with_follower(s) for s in found]
        for sequence in reversed(found):
            self._end(sequence)
        return found

    def _exchange_with_follower(self, sequence: Sequence) -> Sequence:
        """`sequence`, or if others wait for it to compute their prompt, one of these; both change their index.

        Before the prompt is computed the answers of a request differ by nothing but their index.
        """
        if not sequence.pending:
            return sequence
        other = sequence.pending[-1]
        sequence.index, other.index = other.index, sequence.index
        return other

    def fail(self, sequence: Sequence) -> list[Sequence]:
        """End a sequence for an error, with those that wait for it; returns the answers that ended."""
        if sequence.status is Status.FINISHED:
            return []
        ended = [sequence, *sequence.pending]
        for each in reversed(ended):
            self._end(each)
        return ended

    def _end(self, sequence: Sequence) -> None:
        leader = next((s for s in self._queues.requests[sequence.request_id] if sequence in s.pending), None)
        if leader is None:
            self._queues.move(sequence, Status.FINISHED)
        else:
            leader.pending.remove(sequence)
            self._queues.slots -= leader.status is Status.RUNNING
            sequence.status = Status.FINISHED
        if sequence.generated:
            self._totals.count_length(sequence.prompt_len, len(sequence.tokens))
        self._tables.release(sequence)
        self._queues.forget(sequence)

    # ---- steps

    def has_work(self) -> bool:
        """Whether a request is unfinished; then `schedule` returns a step with a row, once all before it is settled."""
        return bool(self._queues.requests)

    def schedule(self) -> Step:
        """Plan the next step; the previous one has been settled, or counted where `can_schedule_ahead`.

        Sequences that will end with a token on its way have no part in it, so that it may be empty in the latter case.
        """
        step = StepPlan(self.config, self._queues, self._tables, self._totals).make()
        if self.config.enable_prefix_caching:
            for sequence in step.started:
                self._observe(sequence)
        return step

    def advance(self, step: Step) -> None:
        """Count a step as computed, though its tokens are not known yet: `UNKNOWN_TOKEN` stands for each.

        What the step computes must be there before anything of a later step is. Its tokens are settled before the next
        step is counted so. A step that scores prompts is settled at once instead.
        """
        settling.advance(step, self._tables)

    def can_schedule_ahead(self) -> bool:
        """Whether `schedule` may plan the next step before the tokens of the one counted last are known.

        It may if no sequence will be preempted, for a token must reach its sequence where it is. A sequence that turns
        out to have ended was computed once for nothing.
        """
        return none_is_preempted(self._queues, self._tables)

    def _observe(self, sequence: Sequence) -> None:
        self.prefix_lengths.observe(sequence.request.prompt_token_ids, lambda i: self._tables.key(sequence, i))

    def settle(self, step: Step, token_ids: abc.Sequence[int]) -> list[Settled]:
        """Take the tokens sampled for `step.sampling()`, in that order; ended sequences give up their blocks.

        Full blocks, of prompts and of answers, can be found in the prefix cache from here on. A sequence that has ended
        since `schedule` is skipped.

        Raises:
            ValueError: not one token for each sequence that samples.
        """
        expected = sum(1 + len(row.siblings) for row in step.rows if row.samples)
        if len(token_ids) != expected:
            raise ValueError(f"the step samples {expected} tokens, but {len(token_ids)} were given")
        settled = settling.apply(step, token_ids, self._tables)
        # Backwards, so that answers which wait for a prompt go before the one that computes it.
        for each in reversed(settled):
            if each.finish_reason is not None:
                self._end(each.sequence)
        return settled

    # ---- questions

    def stats(self) -> EngineStats:
        """State and totals, without what only the engine's loop knows."""
        return reporting.report(self.config, self._queues, self._tables, self._totals, self.prefix_lengths)

    def check_integrity(self) -> None:
        """Check all invariants of queues, tables and pools; for tests.

        Raises:
            AssertionError: one does not hold.
        """
        integrity.check(self.config, self._queues, self._tables)
