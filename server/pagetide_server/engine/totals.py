"""What the scheduler has done since it was made."""

from __future__ import annotations

import dataclasses

# Weight of the newest ended sequence in the running mean of tokens per sequence.
_NEWEST = 1 / 32


@dataclasses.dataclass(slots=True)
class Totals:
    """Counts of what happened; none ever goes back.

    Attributes:
        mean_tokens: running mean of what an ended sequence held of memory, in tokens; None before the first ended.
    """

    steps: int = 0
    preemptions_swap: int = 0
    preemptions_recompute: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    mean_tokens: float | None = None

    def count_length(self, prompt_tokens: int, all_tokens: int) -> None:
        """Count an ended sequence in the mean. Its blocks were taken as its answer grew, so that it held the middle."""
        tokens = (prompt_tokens + all_tokens) / 2
        mean = tokens if self.mean_tokens is None else self.mean_tokens
        self.mean_tokens = mean + _NEWEST * (tokens - mean)
