"""StepPlan: the decisions of one step. Created for a step and dropped after it."""

from __future__ import annotations

from .in_flight_prefixes import InFlightPrefixes
from .limits import SchedulerConfig
from .preemption import Joining, count_preempted, owed
from .queues import Queues
from .sequence import Row, Sequence, Status, Step
from .tables import BlockTables
from .totals import Totals


class StepPlan:
    """Chooses the rows of one step.

    1. Running sequences go on, most important first. Each that decodes has its token set aside in the budget, the
       rest is for prompts. One that lacks a block takes it from the least important sequences behind it (they are not
       in the step yet, so nothing planned is undone). One without any behind it stands still for this step: it keeps
       its blocks until a more important sequence wants them.
    2. If no block was short: swapped-out and waiting sequences join in order of importance. The first that does not
       fit ends this, so that no request is bypassed for ever. A sequence joins if slots are free for all answers of its
       request and the blocks of its whole text are available beside what running prompts still need and a small
       reserve; if none runs, it joins in any case (it fits in the empty memory, or was refused on arrival).

    A waiting sequence whose next block is computed in this step by another one (the same text up to its end) joins in
    the next one, and finds it then. That is a wait of one step: new requests are considered only where all prompts
    before them got what they asked for, so that these are complete. (Of equal texts one sequence always goes first.)

    A step computes at most `max_scored_tokens` tokens of prompts with `prompt_logprobs`. Such a prompt may join and get
    none of them yet: it keeps its place, and those behind it get theirs.
    """

    def __init__(self, config: SchedulerConfig, queues: Queues, tables: BlockTables, totals: Totals) -> None:
        self.config, self.queues, self.tables, self.totals = config, queues, tables, totals
        self.step = Step()
        self.prompts: list[Row] = []
        self.forking: list[Row] = []
        self.in_flight_prefixes = InFlightPrefixes(self.prompts, tables)
        # Tokens left for prompts and new requests; tokens set aside for decodes.
        self.budget = config.max_num_batched_tokens
        self.decode_budget = 0
        # Of the budget, what may go to prompts with `prompt_logprobs`.
        self.score_budget = config.max_scored_tokens
        # Blocks that running prompts will need beyond those they have.
        self.promised = 0
        self.is_short = False
        self.favoured: Sequence | None = None

    def make(self) -> Step:
        """Plan the step; changes queues and tables accordingly."""
        if self.config.policy == "priority":
            self._give_way()
        self._continue_running()
        if not self.is_short:
            self._admit()
        for row in self.forking:
            self._fork(row)
        self.step.rows += self.prompts
        self.totals.steps += bool(self.step.rows)
        return self.step

    # ---- running sequences

    def _continue_running(self) -> None:
        running = self.queues.running.items
        refs, size = self.tables.device.refs, self.config.block_size
        decoding = sum(len(s.tokens) - s.computed == 1 for s in running)
        # The first one always gets on, whatever the others do: that is why the scheduler cannot lock itself up.
        prompt_first = bool(running) and len(running[0].tokens) - running[0].computed != 1
        self.decode_budget = min(decoding, self.budget - prompt_first)
        self.budget -= self.decode_budget
        at = 0
        while at < len(running):
            sequence = running[at]
            start, blocks = sequence.computed, sequence.blocks
            if len(sequence.tokens) - start != 1:
                self._continue_prompt(sequence, at)
            elif sequence.ends_with_unknown:
                pass
            elif self.decode_budget and (
                (start // size < len(blocks) and refs[blocks[start // size]] == 1)
                or self._make_room(sequence, start + 1, at)
            ):
                self.decode_budget -= 1
                self._add_row(sequence, 1)
            at += 1

    def _continue_prompt(self, sequence: Sequence, at: int) -> None:
        start = sequence.computed
        count = wanted = self._share(sequence, start)
        # Others are preempted for its next token only: a smaller piece is better than a preemption. (A prompt in
        # one piece is never here: it got all its blocks when it joined.)
        if count and not self._make_room(sequence, start + 1, at):
            count = 0
        if count:
            count = min(count, self._reach(sequence) - start)
            self._extend(sequence, start + count)
            self._add_prompt(sequence, count)
        self.is_short |= count < wanted
        self.promised += owed(sequence, self.tables)

    def _share(self, sequence: Sequence, start: int) -> int:
        """Tokens of a prompt to compute now, of those left in the budgets; 0 if it must be whole and is longer."""
        todo = len(sequence.tokens) - start
        if sequence.is_scored:
            return min(todo, self.budget, self.score_budget)
        # A preempted sequence may come back in pieces in any case: with its answer it can be longer than a step.
        if todo <= self.budget or self.config.enable_chunked_prefill or sequence.generated:
            return min(todo, self.budget)
        return 0

    def _reach(self, sequence: Sequence) -> int:
        """Tokens that the sequence's blocks and the available ones can hold."""
        return (len(sequence.blocks) + self.tables.device.available) * self.config.block_size

    def _make_room(self, sequence: Sequence, length: int, at: int) -> bool:
        """Make `sequence`, at place `at`, writable up to `length`; preempts sequences behind it if need be."""
        device, running = self.tables.device, self.queues.running.items
        if self.tables.missing(sequence, length) > device.available:
            device.note_failure()
            self.is_short = True
            while self.tables.missing(sequence, length) > device.available:
                if len(running) == at + 1:
                    return False
                self._preempt(running[-1])
        self._extend(sequence, length)
        return True

    def _extend(self, sequence: Sequence, length: int) -> None:
        self.step.copies += self.tables.extend(sequence, length)

    def _add_row(self, sequence: Sequence, count: int) -> None:
        start, length = sequence.computed, len(sequence.tokens)
        row = Row(sequence, start, count, start + count == length < sequence.limit)
        (self.step.rows if length - start == 1 else self.prompts).append(row)
        if row.samples and sequence.pending:
            self.forking.append(row)

    def _add_prompt(self, sequence: Sequence, count: int) -> None:
        self.budget -= count
        if sequence.is_scored:
            self.score_budget -= count
        self._add_row(sequence, count)

    def _fork(self, row: Row) -> None:
        """The prompt ends in this step: let the request's other answers join (their slots were kept)."""
        row.siblings = tuple(row.sequence.pending)
        row.sequence.pending = []
        for sibling in row.siblings:
            self.tables.fork(row.sequence, sibling)
            sibling.status = Status.RUNNING
            self.queues.running.insert(sibling)

    # ---- giving way

    def _preempt(self, sequence: Sequence) -> None:
        self.step.preempted.append(sequence)
        if self.tables.is_swap_better(sequence):
            pairs = self.tables.swap_out(sequence)
            self.step.swap_out += pairs
            self.totals.preemptions_swap += 1
            self.totals.swapped_out_blocks += len(pairs)
            self.queues.move(sequence, Status.SWAPPED)
        else:
            self.tables.release(sequence)
            self.totals.preemptions_recompute += 1
            self.queues.move(sequence, Status.WAITING)

    def _give_way(self) -> None:
        """Preempt less important running sequences for a better one that lacks slots or blocks.

        Only sequences of a worse priority are preempted, only as many as needed, and only if that is enough. The better
        one then joins in this step, and it alone.
        """
        better, running = self.queues.next_up, self.queues.running.items
        if better is None or not running or running[-1].priority <= better.priority:
            return
        preempted = count_preempted(better, running, self.tables, self._has_room)
        for _ in range(preempted):
            self.favoured = better
            self._preempt(running[-1])

    # ---- joining

    def _has_room(self, join: Joining, promised: int, slots: int = 0, blocks: int = 0, running: int = 0) -> bool:
        """Whether a sequence can join `running` others if `slots` and `blocks` more were free."""
        if self.queues.slots - slots + join.slots > self.config.max_num_seqs:
            return False
        if running == 0:
            return True
        reserve = int(self.config.watermark * self.config.num_blocks) + 1
        return join.blocks <= self.tables.device.available + blocks - promised - reserve

    def _admit(self) -> None:
        while self.budget:
            sequence = self.queues.next_up
            if sequence is None or (self.favoured is not None and sequence is not self.favoured):
                return
            if self.queues.slots + sequence.slots > self.config.max_num_seqs:
                return
            hits = self.tables.match(sequence)
            join = Joining.of(sequence, hits, self.tables)
            if not self._has_room(join, self.promised, running=len(self.queues.running)):
                return
            if self.in_flight_prefixes.holds_next(sequence, len(hits)):
                return
            start = len(hits) * self.config.block_size
            count = self._share(sequence, sequence.computed if sequence.status is Status.SWAPPED else start)
            if not count and not sequence.is_scored:
                return
            self._join(sequence, hits)
            if count:
                self._extend(sequence, sequence.computed + count)
                self._add_prompt(sequence, count)
            self.promised += owed(sequence, self.tables)

    def _join(self, sequence: Sequence, hits: list[int]) -> None:
        if sequence.status is Status.SWAPPED:
            pairs = self.tables.swap_in(sequence, hits)
            self.step.swap_in += pairs
            self.step.resumed.append(sequence)
            self.totals.swapped_in_blocks += len(pairs)
        else:
            self.tables.adopt(sequence, hits)
            if sequence in self.queues.never_scheduled:
                self._count_start(sequence)
        self.queues.move(sequence, Status.RUNNING)

    def _count_start(self, sequence: Sequence) -> None:
        self.step.started.append(sequence)
        if self.config.enable_prefix_caching and sequence.params.prompt_logprobs is None:
            self.totals.prefix_query_tokens += sequence.prompt_len
            self.totals.prefix_hit_tokens += sequence.computed
        for answer in (sequence, *sequence.pending):
            answer.cached_tokens = sequence.computed
