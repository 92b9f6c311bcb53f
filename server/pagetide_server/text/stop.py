"""Stop strings in a text that arrives in pieces."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """A stop string was completed: it is `stop`, and lies in `text[start:end]` of all the text seen so far."""

    stop: str
    start: int
    end: int


class StopFinder:
    """Finds the first completed stop string, however the text is cut into pieces.

    The match that ends first wins; of several that end at the same character, the longest. Work is proportional to
    the new text (Knuth, Morris and Pratt, "Fast pattern matching in strings", 1977), whatever is held back.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        # Longest first: it wins among those that end together.
        self._patterns = [_Pattern(stop) for stop in sorted(set(filter(None, stops)), key=len, reverse=True)]
        self._seen = 0

    @property
    def held(self) -> int:
        """How many of the last characters may be the beginning of a stop string."""
        return max((pattern.matched for pattern in self._patterns), default=0)

    def feed(self, text: str, may_stop: bool = True) -> Match | None:
        """The first match that ends in `text`; with `may_stop` False matches that end here do not count.

        After a match the finder is done.
        """
        found: Match | None = None
        limit = len(text)
        for pattern in self._patterns:
            end = pattern.feed(text, limit, may_stop)
            # A later, shorter pattern wins only if it ends earlier.
            if end and (found is None or self._seen + end < found.end):
                limit = end
                found = Match(pattern.text, self._seen + end - len(pattern.text), self._seen + end)
        self._seen += len(text)
        return found


class _Pattern:
    """One stop string and how much of its beginning the text ends with (`matched`)."""

    __slots__ = ("_fallback", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._fallback = _borders(text)

    def feed(self, piece: str, limit: int, may_stop: bool) -> int:
        """Where in `piece[:limit]` a match ends (1 = after its first character), or 0."""
        text, fallback, matched = self.text, self._fallback, self.matched
        if matched == 0 and text[0] not in piece:
            return 0
        for position in range(limit):
            character = piece[position]
            while matched and text[matched] != character:
                matched = fallback[matched]
            if text[matched] == character:
                matched += 1
            if matched == len(text):
                if may_stop:
                    return position + 1
                matched = fallback[matched]
        self.matched = matched
        return 0


def _borders(text: str) -> list[int]:
    """For each length n, the longest proper prefix of `text[:n]` that is also its suffix."""
    borders = [0, 0]
    matched = 0
    for character in text[1:]:
        while matched and text[matched] != character:
            matched = borders[matched]
        if text[matched] == character:
            matched += 1
        borders.append(matched)
    return borders
