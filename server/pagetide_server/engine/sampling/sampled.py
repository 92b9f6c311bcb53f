"""What comes out of sampling. No torch: the loop reads it."""

from __future__ import annotations

import dataclasses

from ...wire.messages import TokenLogprobs

NO_TOKEN = -1


@dataclasses.dataclass(slots=True)
class Sampled:
    """The outcome of a step, row by row.

    Attributes:
        token_ids: the chosen tokens; `NO_TOKEN` in rows with an error.
        logprobs: what was asked for, None in rows that asked for nothing.
        errors: row to what went wrong: a RequestFault where the request itself is to blame, else an exception or text.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]
    errors: dict[int, object]

    def place(self, rows: list[int], part: Sampled) -> None:
        """Take over the outcome of some rows."""
        for i, row in enumerate(rows):
            self.token_ids[row], self.logprobs[row] = part.token_ids[i], part.logprobs[i]
            if i in part.errors:
                self.errors[row] = part.errors[i]
