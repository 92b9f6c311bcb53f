"""What is to be sent and when: arrivals, lengths and shared prefixes; no clock and no network."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterable, Iterator

from pagetide_spec.traces import BLOCK_TOKENS, Row


@dataclasses.dataclass(frozen=True, slots=True)
class Lengths:
    """A fixed number of tokens, or one drawn evenly from low to high, both included."""

    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        """One length."""
        return self.low if self.low == self.high else rng.randint(self.low, self.high)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}:{self.high}"


def lengths(text: str) -> Lengths:
    """`128` or `64:512`.

    Raises:
        ValueError: another form.
    """
    low, colon, high = text.partition(":")
    found = Lengths(int(low), int(high if colon else low))
    if not 1 <= found.low <= found.high:
        raise ValueError(text)
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """One request to come.

    Attributes:
        at: seconds after the begin of the run; 0 in a closed loop, where the answers before set the pace.
        parts: the prompt's pieces: (name, tokens). Equal names mean equal text (of equal length); a piece without a
            name occurs once.
    """

    at: float
    parts: tuple[tuple[str, int], ...]
    output_tokens: int

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the whole prompt."""
        return sum(tokens for _, tokens in self.parts)


def poisson(rate: float, rng: random.Random) -> Iterator[float]:
    """Endless arrival times whose gaps are exponentially distributed with mean 1 / rate."""
    at = 0.0
    while True:
        at += rng.expovariate(rate)
        yield at


@dataclasses.dataclass(frozen=True, slots=True)
class Mix:
    """The kind of requests that are made up: lengths, and how many prefixes of which length they share."""

    prompt: Lengths
    output: Lengths
    prefix_tokens: int = 0
    prefixes: int = 1

    @property
    def longest(self) -> int:
        """Tokens of the longest request, its answer included."""
        return self.prefix_tokens + self.prompt.high + self.output.high


def made_up(mix: Mix, arrivals: Iterable[float], rng: random.Random) -> Iterator[Shape]:
    """One shape for each arrival."""
    for at in arrivals:
        shared = ((f"prefix-{rng.randrange(mix.prefixes)}", mix.prefix_tokens),) if mix.prefix_tokens else ()
        yield Shape(at, (*shared, ("", mix.prompt.draw(rng))), mix.output.draw(rng))


def closed(mix: Mix, rng: random.Random) -> Iterator[Shape]:
    """Endless shapes for a closed loop."""
    return made_up(mix, itertools.repeat(0.0), rng)


def replayed(rows: Iterable[Row], speed: float) -> Iterator[Shape]:
    """A trace's requests; `speed` 2 plays it in half its time."""
    for row in rows:
        yield Shape(row.at / speed, _blocks(row), row.output_tokens)


def _blocks(row: Row) -> tuple[tuple[str, int], ...]:
    """Blocks by their ids as far as the prompt goes; what lies beyond them is its own."""
    parts, left = [], row.prompt_tokens
    for hash_id in row.hash_ids:
        if left <= 0:
            break
        parts.append((f"block-{hash_id}", min(BLOCK_TOKENS, left)))
        left -= BLOCK_TOKENS
    return (*parts, ("", left)) if left > 0 else tuple(parts)


def within(shapes: Iterable[Shape], requests: int | None, seconds: float | None) -> Iterator[Shape]:
    """The first so many of them that arrive within so many seconds."""
    for shape in itertools.islice(shapes, requests):
        if seconds is not None and shape.at > seconds:
            return
        yield shape
