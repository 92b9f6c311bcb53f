"""Prompts of a wanted length, without a tokenizer: token ids, or words of which the server said how long they are.

A piece begins with units of its own and goes on with a slice of a pool made once, so that thousands of tokens cost
microseconds and no two prompts begin alike by chance.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import msgspec

from .shapes import Shape

POOL_UNITS = 1 << 16
OWN_UNITS = 8
_SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
# The first ids of a vocabulary are often control tokens.
FIRST_ID = 256


@dataclasses.dataclass(frozen=True, slots=True)
class Ruler:
    """What words are in tokens: `per_word` each, and `base` for what surrounds a prompt (such as a chat template)."""

    base: float = 0.0
    per_word: float = 1.0

    def words(self, tokens: int, whole: bool) -> int:
        """Words for so many tokens, at least one; `whole`: the prompt as a whole, with what surrounds it."""
        return max(1, round((tokens - (self.base if whole else 0.0)) / self.per_word))


def ruler(short: tuple[int, int], long: tuple[int, int]) -> Ruler:
    """The line through two measurements (words, tokens).

    Raises:
        ValueError: more words were not more tokens.
    """
    slope = (long[1] - short[1]) / (long[0] - short[0])
    if slope <= 0:
        raise ValueError(f"{long[0]} words are {long[1]} tokens, {short[0]} words {short[1]}")
    return Ruler(max(0.0, short[1] - slope * short[0]), slope)


class Prompts:
    """Makes prompts; the same seed makes the same ones.

    Args:
        vocab_size: prompts are token ids below it; None: they are words.
        measure: what a word is in tokens; of no use for token ids.
    """

    def __init__(self, seed: int, vocab_size: int | None = None, measure: Ruler | None = None) -> None:
        self._rng = random.Random(f"{seed}/prompts")
        self._seed, self._measure = seed, measure or Ruler()
        self.are_ids = vocab_size is not None
        self._units = _ids(vocab_size) if vocab_size is not None else _words()
        self._joint = "," if self.are_ids else " "
        self._pool = self._rng.choices(self._units, k=POOL_UNITS)
        self._named: dict[tuple[str, int], str] = {}

    def make(self, shape: Shape) -> msgspec.Raw | str:
        """The prompt of a request: a JSON list of ids, or a text."""
        texts = []
        for number, (name, tokens) in enumerate(shape.parts):
            units = tokens if self.are_ids else self._measure.words(tokens, number == len(shape.parts) - 1)
            texts.append(self._named_piece(name, units) if name else self._piece(self._rng, units))
        text = self._joint.join(texts)
        return msgspec.Raw(f"[{text}]".encode()) if self.are_ids else text

    def words(self, count: int) -> str:
        """A text of so many words."""
        return self._piece(self._rng, count)

    def _named_piece(self, name: str, units: int) -> str:
        # Prefixes recur all the time; a trace's blocks are too many to be kept.
        if name.startswith("prefix-"):
            if (name, units) not in self._named:
                self._named[name, units] = self._piece(random.Random(f"{self._seed}/{name}"), units)
            return self._named[name, units]
        return self._piece(random.Random(f"{self._seed}/{name}"), units)

    def _piece(self, rng: random.Random, units: int) -> str:
        own = rng.choices(self._units, k=min(OWN_UNITS, units))
        start = rng.randrange(POOL_UNITS)
        left = units - len(own)
        rest = self._pool[start : start + left]
        while len(rest) < left:
            rest += self._pool[: left - len(rest)]
        return self._joint.join(own + rest)


def _ids(vocab_size: int) -> list[str]:
    first = FIRST_ID if vocab_size > 4 * FIRST_ID else 0
    return [str(i) for i in range(first, vocab_size)]


def _words() -> list[str]:
    return [a + b for a in _SYLLABLES for b in _SYLLABLES]


def body(shape: Shape, prompt: msgspec.Raw | str, chat: bool, fields: dict[str, Any]) -> bytes:
    """The JSON of a request: `fields` are those that all requests have."""
    what = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
    return msgspec.json.encode({**fields, **what, "max_tokens": shape.output_tokens})
