"""A toy in place of model and memory: it shows what every sequence would have read from its KV blocks."""

from __future__ import annotations

import dataclasses
import zlib

from pagetide_server.engine.scheduler import Scheduler, Settled
from pagetide_server.engine.sequence import UNKNOWN_TOKEN, Row, Sequence, Step
from pagetide_server.wire.messages import AddRequest

VOCABULARY = 50


def root(salt: str) -> int:
    """The content before the first token; unlike `hash`, it is the same in every process."""
    return zlib.crc32(salt.encode())


def chain(before: int, token_id: int) -> int:
    """What the toy stores for a token: a number that stands for all the text up to it."""
    return hash((before, token_id))


def sampled(content: int, index: int) -> int:
    """The toy's answer after a text: like a seeded sampler, it depends on the text and on the answer's index."""
    return hash((content, index, 7)) % VOCABULARY


def expected_answer(request: AddRequest, index: int, length: int) -> list[int]:
    """The first `length` tokens of an answer, computed alone, with no scheduler and no memory."""
    content = root(request.cache_salt)
    for token_id in request.prompt_token_ids:
        content = chain(content, token_id)
    answer: list[int] = []
    for _ in range(length):
        answer.append(sampled(content, index))
        content = chain(content, answer[-1])
    return answer


class ToyMemory:
    """Executes steps on blocks that hold `chain` values, and checks all that a step reads and writes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        config = scheduler.config
        self.size = config.block_size
        self.device = [[None] * self.size for _ in range(config.num_blocks)]
        self.host = [[None] * self.size for _ in range(config.num_swap_blocks)]
        # The newest token of sequences that do not know it yet.
        self.device_tokens: dict[Sequence, int] = {}

    def execute(self, step: Step) -> list[int]:
        """Do what the step says, in the order that it promises; returns one token for each sampling sequence."""
        _copy(step.swap_out, self.device, self.host)
        _copy(step.swap_in, self.host, self.device)
        _copy(step.copies, self.device, self.device)
        self._check_writes(step)
        contents = [self._compute(row) for row in step.rows]
        return [
            sampled(content, sequence.index)
            for row, content in zip(step.rows, contents, strict=True)
            if row.samples
            for sequence in (row.sequence, *row.siblings)
        ]

    def _compute(self, row: Row) -> int:
        sequence = row.sequence
        content = root(sequence.request.cache_salt)
        for at, token_id in enumerate(sequence.tokens[: row.start + row.count]):
            content = chain(content, self.device_tokens[sequence] if token_id == UNKNOWN_TOKEN else token_id)
            block = self.device[sequence.blocks[at // self.size]]
            if at >= row.start:
                block[at % self.size] = content
            assert block[at % self.size] == content, f"{sequence} reads something else at {at}"
        return content

    def _check_writes(self, step: Step) -> None:
        written = [block for row in step.rows for block in self._written(row)]
        assert len(set(written)) == len(written), "two rows write into one block"

    def _written(self, row: Row) -> list[int]:
        blocks = row.sequence.blocks[row.start // self.size : (row.start + row.count - 1) // self.size + 1]
        for block in blocks:
            # Answers that fork from this very row share its blocks, but read them only from the next step on.
            holders = 1 + len(row.siblings)
            assert self.scheduler._tables.device.refs[block] == holders, f"{row} writes into a shared block"
        return blocks


def _copy(pairs: list[tuple[int, int]], source: list[list], target: list[list]) -> None:
    """All reads before all writes, like a batched copy."""
    targets = [to for _, to in pairs]
    assert len(set(targets)) == len(targets), "two copies go to one block"
    contents = [list(source[block]) for block, _ in pairs]
    for (_, to), content in zip(pairs, contents, strict=True):
        target[to] = content


@dataclasses.dataclass
class ToyEngine:
    """Scheduler and toy memory, stepped together, with the scheduler's invariants checked after every step."""

    scheduler: Scheduler

    def __post_init__(self) -> None:
        self.memory = ToyMemory(self.scheduler)
        self.ended: dict[tuple[str, int], Settled] = {}

    def step(self) -> Step:
        """One step; returns its plan."""
        step = self.plan()
        self.settle(step, self.memory.execute(step))
        return step

    def plan(self) -> Step:
        """Schedule and check the plan itself."""
        assert self.scheduler.has_work()
        step = self.scheduler.schedule()
        self.scheduler.check_integrity()
        config = self.scheduler.config
        assert step.rows, "a scheduler with work does nothing"
        assert step.num_tokens <= config.max_num_batched_tokens
        remaining = [len(row.sequence.tokens) - row.start for row in step.rows]
        decodes = [left == 1 for left in remaining]
        assert decodes == sorted(decodes, reverse=True), "a decode comes after a prompt"
        return step

    def settle(self, step: Step, token_ids: list[int]) -> list[Settled]:
        """Settle and check every answer that ended against the one computed alone."""
        settled = self.scheduler.settle(step, token_ids)
        self.scheduler.check_integrity()
        for each in settled:
            self._check_answer(each.sequence)
            if each.finish_reason is not None:
                key = (each.sequence.request_id, each.sequence.index)
                assert key not in self.ended, "an answer ended twice"
                self.ended[key] = each
        return settled

    def _check_answer(self, sequence: Sequence) -> None:
        answer = sequence.tokens[sequence.prompt_len :]
        assert answer == expected_answer(sequence.request, sequence.index, len(answer))

    def run(self, limit: int = 10_000) -> list[Step]:
        """Steps until nothing is left to do."""
        steps = []
        while self.scheduler.has_work():
            assert len(steps) < limit, "the scheduler does not come to an end"
            steps.append(self.step())
        return steps

    def check_empty(self) -> None:
        """Nothing is left of any request."""
        stats = self.scheduler.stats()
        assert (stats.running, stats.waiting, stats.swapped) == (0, 0, 0)
        assert (stats.blocks_used, stats.blocks_swapped) == (0, 0)
        assert stats.oldest_arrival is None


class AheadEngine(ToyEngine):
    """Begins a step before the scheduler knows the tokens of the one before, wherever it may."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.in_flight: tuple[Step, list[int]] | None = None
        self.begun_ahead = 0

    def step(self) -> Step:
        step = self.plan()
        self.begun_ahead += self.in_flight is not None and bool(step.rows)
        tokens = self.memory.execute(step)
        self.land()
        if any(row.sequence.is_scored for row in step.rows):
            super().settle(step, tokens)
        else:
            self.scheduler.advance(step)
            self.scheduler.check_integrity()
            self.in_flight = step, tokens
            self.memory.device_tokens = dict(zip(step.sampling(), tokens, strict=True))
        return step

    def plan(self) -> Step:
        if self.in_flight is None:
            return super().plan()
        if not self.scheduler.can_schedule_ahead():
            self.land()
            return super().plan() if self.scheduler.has_work() else Step()
        step = self.scheduler.schedule()
        self.scheduler.check_integrity()
        assert not step.preempted, "somebody gave way whose token is not known"
        assert step.num_tokens <= self.scheduler.config.max_num_batched_tokens
        return step

    def land(self) -> None:
        """Settle the step whose tokens are on their way."""
        if self.in_flight is not None:
            last, self.in_flight, self.memory.device_tokens = self.in_flight, None, {}
            super().settle(*last)

    def settle(self, step: Step, token_ids: list[int]) -> list[Settled]:
        self.land()
        return super().settle(step, token_ids)

    def run(self, limit: int = 10_000) -> list[Step]:
        steps = super().run(limit)
        self.land()
        return steps
