"""Which sequences are preempted for a better one that lacks slots or blocks. Decides only, changes nothing."""

from __future__ import annotations

import collections
import dataclasses
from typing import Protocol

from .queues import Queues
from .sequence import Sequence
from .tables import BlockTables


@dataclasses.dataclass(frozen=True, slots=True)
class Joining:
    """What a sequence takes when it joins: slots of the running batch, and blocks of those available now."""

    slots: int
    blocks: int

    @classmethod
    def of(cls, sequence: Sequence, hits: list[int], tables: BlockTables) -> Joining:
        """What `sequence` takes, if `hits` are the blocks that it finds in the prefix cache."""
        need = tables.blocks_for(len(sequence.tokens)) + len(sequence.pending)
        return cls(sequence.slots, need - len(hits) + tables.device.idle(hits))


class Room(Protocol):
    """Whether a sequence can join `running` others that will take `promised` blocks, if so much more were free."""

    def __call__(self, join: Joining, promised: int, slots: int = 0, blocks: int = 0, running: int = 0) -> bool: ...


def due(sequence: Sequence, tables: BlockTables) -> int:
    """Blocks that a running sequence will take before others join: for its prompt, or for its next token."""
    if len(sequence.tokens) - sequence.computed != 1:
        return owed(sequence, tables)
    return tables.missing(sequence, sequence.computed + 1)


def owed(sequence: Sequence, tables: BlockTables) -> int:
    """Blocks that a sequence will need for its prompt and the answers yet to join."""
    return max(0, tables.blocks_for(len(sequence.tokens)) - len(sequence.blocks)) + len(sequence.pending)


def none_is_preempted(queues: Queues, tables: BlockTables) -> bool:
    """Whether the next step can go without a preemption, whatever tokens the running sequences get until then."""
    running, config, better = queues.running.items, tables.config, queues.next_up
    if config.policy == "priority" and better and running and running[-1].priority > better.priority:
        return False
    available = tables.device.available
    # Most often there is plenty: a decode takes one block, all prompts together what a step computes and one each.
    plenty = len(running) + tables.blocks_for(config.max_num_batched_tokens)
    return available >= plenty or available >= sum(due(s, tables) for s in running)


def count_preempted(better: Sequence, running: list[Sequence], tables: BlockTables, has_room: Room) -> int:
    """How many sequences at the end of `running` must go for `better` to join.

    Only those of a worse priority may. 0 if none need go, or if all of them are not enough.
    """
    promised = sum(due(s, tables) for s in running)
    slots, blocks, preempted, held = 0, 0, 0, collections.Counter[int]()
    # What it finds in the cache it shares with the preempted ones: their leaving frees nothing for it.
    hits = tables.match(better)
    shared, join = set(hits), Joining.of(better, hits, tables)
    while not has_room(join, promised, slots, blocks, len(running) - preempted):
        candidate = running[-1 - preempted] if preempted < len(running) else None
        if candidate is None or candidate.priority <= better.priority:
            return 0
        preempted += 1
        slots += candidate.slots
        promised -= due(candidate, tables)
        # Answers of one request share blocks: these are free once all that hold them have gone.
        held.update(candidate.blocks)
        blocks += sum(held[b] == tables.device.refs[b] and b not in shared for b in candidate.blocks)
    return preempted
