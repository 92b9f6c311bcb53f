"""The scheduler's state and totals, as the engine reports them."""

from __future__ import annotations

from ..wire.messages import EngineStats
from .limits import SchedulerConfig
from .prefix_lengths import PrefixLengths
from .queues import Queues
from .tables import BlockTables
from .totals import Totals


def report(
    config: SchedulerConfig, queues: Queues, tables: BlockTables, totals: Totals, prefix_lengths: PrefixLengths
) -> EngineStats:
    """State and totals, without what only the engine's loop knows."""
    device = tables.device
    return EngineStats(
        running=len(queues.running),
        waiting=len(queues.waiting),
        swapped=len(queues.swapped),
        oldest_arrival=next(iter(queues.never_scheduled)).request.arrival if queues.never_scheduled else None,
        blocks_free=device.free,
        blocks_cached=device.cached,
        blocks_used=device.used,
        blocks_swapped=tables.host.used,
        admissible_seqs=_admissible(config, queues, totals),
        steps=totals.steps,
        preemptions_swap=totals.preemptions_swap,
        preemptions_recompute=totals.preemptions_recompute,
        swapped_out_blocks=totals.swapped_out_blocks,
        swapped_in_blocks=totals.swapped_in_blocks,
        block_allocations=device.allocations,
        block_allocation_failures=device.failures,
        prefix_query_tokens=totals.prefix_query_tokens,
        prefix_hit_tokens=totals.prefix_hit_tokens,
        prefix_tail_tokens=prefix_lengths.tail_tokens,
        prefix_shareable_tokens=dict(prefix_lengths.saved_tokens),
    )


def _admissible(config: SchedulerConfig, queues: Queues, totals: Totals) -> int:
    """Sequences that could run now: what max_num_seqs and, at the recent mean length, KV memory admit.

    Never fewer than run: shared prefixes take less memory than the mean says.
    """
    running, mean = queues.running.items, totals.mean_tokens
    if mean is None and running:
        mean = sum(len(s.tokens) for s in running) / len(running)
    by_memory = config.capacity_tokens // max(mean or 1, 1)
    return max(min(config.max_num_seqs, int(by_memory)), len(running), 1)
