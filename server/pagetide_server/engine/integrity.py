"""The scheduler's invariants, checked as a whole. For tests: it takes time proportional to all there is."""

from __future__ import annotations

from .limits import SchedulerConfig
from .queues import Queues, SequenceQueue
from .sequence import Sequence, Status
from .tables import BlockTables


def check(config: SchedulerConfig, queues: Queues, tables: BlockTables) -> None:
    """Compare queues, tables and pools with each other, between two steps.

    Raises:
        AssertionError: an invariant does not hold; the text says which.
    """
    lined_up = [*queues.waiting, *queues.running, *queues.swapped]
    pending = [answer for sequence in lined_up for answer in sequence.pending]
    everybody = [*lined_up, *pending]
    assert len({id(s) for s in everybody}) == len(everybody), "a sequence is in two places"
    listed = [s for members in queues.requests.values() for s in members]
    assert {id(s) for s in listed} == {id(s) for s in everybody}, "a request has lost or kept a sequence"
    for line, status in (
        (queues.waiting, Status.WAITING),
        (queues.running, Status.RUNNING),
        (queues.swapped, Status.SWAPPED),
    ):
        _check_queue(line, status)
    assert set(queues.never_scheduled) <= set(queues.waiting), "a request that was never scheduled does not wait"
    assert queues.slots == sum(s.slots for s in queues.running) <= config.max_num_seqs, "slots are miscounted"
    tables.device.check_integrity(s.blocks for s in everybody)
    tables.host.check_integrity(s.host_blocks for s in everybody)
    for sequence in everybody:
        _check_sequence(sequence, config, tables)


def _check_queue(line: SequenceQueue, status: Status) -> None:
    assert all(s.status is status for s in line), f"a sequence in the {status.value} line has another status"
    orders = [s.order for s in line]
    assert orders == sorted(orders), f"the {status.value} line is out of order"


def _check_sequence(sequence: Sequence, config: SchedulerConfig, tables: BlockTables) -> None:
    size = config.block_size
    assert len(sequence.tokens) <= sequence.limit, f"{sequence} is too long"
    if sequence.status is Status.RUNNING:
        assert sequence.computed <= min(len(sequence.tokens), len(sequence.blocks) * size), f"{sequence} lacks a block"
        assert not sequence.host_blocks, f"{sequence} runs with host blocks"
        unfinished = sequence.blocks[sequence.computed // size :]
        assert not any(map(tables.device.is_known, unfinished)), f"{sequence} will write into a cached block"
        assert len(sequence.blocks) <= tables.blocks_for(len(sequence.tokens)), f"{sequence} has a block to spare"
    elif sequence.status is Status.SWAPPED:
        assert len(sequence.host_blocks) == tables.blocks_for(sequence.computed), f"{sequence} lacks a host block"
        assert not sequence.blocks, f"{sequence} is swapped out and has device blocks"
    else:
        assert not sequence.blocks, f"{sequence} waits with device blocks"
        assert not sequence.host_blocks, f"{sequence} waits with host blocks"
        assert sequence.computed == 0, f"{sequence} waits with computed tokens"
