"""Writing a plain token's event without making it again: only its text differs from that of the token before."""

from __future__ import annotations

import time
from collections.abc import Callable

from pagetide_http.fast_path import FastPath

from .recorded_answer import RecordedAnswer
from .streaming import encode

# Stands for the text in an event that serves as the pattern of others.
SAMPLE = "<text>"
_ENCODED = encode(SAMPLE)


class TokenWriter:
    """Writes the events of the tokens of one answer, which must be one that `takes_tokens`.

    Args:
        make_event: makes the event of a text; has to make the same of each one, but for the text.

    Raises:
        ValueError: as `around_text`.
    """

    __slots__ = ("_answer", "_head", "_tail", "_way")

    def __init__(self, way: FastPath, answer: RecordedAnswer, make_event: Callable[[str], bytes]) -> None:
        self._way, self._answer = way, answer
        self._head, self._tail = around_text(make_event)

    def write(self, token_id: int) -> bool:
        """Write the event of a token, if the token completes a character; False: the way is not free."""
        way = self._way
        if not way.is_free():
            return False
        text = self._answer.take_token_at(token_id, time.monotonic())
        if text:
            way.write(self._head + encode(text) + self._tail)
        return True


def around_text(make_event: Callable[[str], bytes]) -> tuple[bytes, bytes]:
    """What stands before and behind the text in the events that `make_event` makes.

    They are searched from the end: what a client may choose, such as the id, stands before the text.

    Raises:
        ValueError: there is no text in an event, as where text is held back. Tokens then would be written bare.
    """
    made = make_event(SAMPLE)
    head, text, tail = made.rpartition(_ENCODED)
    if not text:
        raise ValueError(f"the event {made[:200]!r} of the text {SAMPLE!r} is without it")
    return head, tail
