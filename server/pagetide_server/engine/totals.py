"""What the scheduler has done since it was made."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(slots=True)
class Totals:
    """Counts of what happened; none ever goes back."""

    steps: int = 0
    preemptions_swap: int = 0
    preemptions_recompute: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
