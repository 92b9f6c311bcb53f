"""Medians, ranges and ratios of runs, as a table. Pure."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

# A run during which others used more of the machine than this says little.
MOST_OTHERS = 0.10


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of one contender on one workload, as its driver told it."""

    contender: str
    weights: str
    precision: str
    workload: str
    round: int
    seconds: float
    tokens: int
    first_token_seconds: list[float]
    peak_mib: float
    own_share: float
    others_share: float
    beginnings: list[list[int]]

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second."""
        return self.tokens / self.seconds

    @property
    def first_token(self) -> float | None:
        """Median time to first token in seconds, where it is known."""
        return statistics.median(self.first_token_seconds) if self.first_token_seconds else None

    @property
    def is_disturbed(self) -> bool:
        """Whether others used too much of the machine meanwhile."""
        return self.others_share > MOST_OTHERS


@dataclasses.dataclass(frozen=True)
class Spread:
    """Median, least and greatest of some values."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of one value at least."""
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1])

    def text(self, digits: int = 1) -> str:
        """`median (least-greatest)`"""
        return f"{self.median:.{digits}f} ({self.least:.{digits}f}-{self.greatest:.{digits}f})"


@dataclasses.dataclass(frozen=True)
class Line:
    """One contender on one workload. ratio: of the first contender to it, the median over rounds; above 1 it is ahead.

    `first_token_ratio`: the first contender's time to first token over this one's; below 1 it is ahead.
    `agreement`: share of the answers that begin with the same tokens.
    """

    workload: str
    contender: str
    weights: str
    precision: str
    runs: int
    disturbed: int
    tokens_per_second: Spread
    first_token: Spread | None
    peak_mib: Spread
    others_share: Spread
    ratio: Spread | None
    first_token_ratio: Spread | None
    agreement: float | None
    is_unlike: bool


def lines(runs: Sequence[Run]) -> list[Line]:
    """One line for each workload and contender, in order of appearance; the first contender is the one compared.

    Disturbed runs are left out where others remain, and counted.
    """
    return [_line(workload, name, runs) for workload, name in dict.fromkeys((r.workload, r.contender) for r in runs)]


def _line(workload: str, name: str, runs: Sequence[Run]) -> Line:
    everyone = [r for r in runs if r.workload == workload]
    every = [r for r in everyone if r.contender == name]
    used = _undisturbed(every)
    leader = _undisturbed([r for r in everyone if r.contender == runs[0].contender])
    is_leader = name == runs[0].contender
    return Line(
        workload,
        name,
        every[0].weights,
        every[0].precision,
        len(used),
        len(every) - len(used),
        Spread.of(r.tokens_per_second for r in used),
        Spread.of(tokens) if (tokens := [r.first_token for r in used if r.first_token is not None]) else None,
        Spread.of(r.peak_mib for r in used),
        Spread.of(r.others_share for r in used),
        None if is_leader else _ratios(leader, used, lambda r: r.tokens_per_second),
        None if is_leader else _ratios(leader, used, lambda r: r.first_token),
        None if is_leader or not leader else _agreement(leader[0].beginnings, used[0].beginnings),
        bool(leader) and leader[0].precision != every[0].precision,
    )


def _undisturbed(runs: Sequence[Run]) -> list[Run]:
    return [r for r in runs if not r.is_disturbed] or list(runs)


def _ratios(leader: Sequence[Run], others: Sequence[Run], value: Any) -> Spread | None:
    """Of the runs of the same round, for these lie next to each other in time."""
    by_round = {r.round: value(r) for r in leader}
    pairs = [(by_round.get(r.round), value(r)) for r in others]
    ratios = [ours / theirs for ours, theirs in pairs if ours is not None and theirs is not None]
    return Spread.of(ratios) if ratios else None


def _agreement(ours: Sequence[list[int]], theirs: Sequence[list[int]]) -> float | None:
    """Share of the answers that begin alike; None where one of the two tells no tokens."""
    if not ours or not theirs:
        return None
    return statistics.fmean(a == b for a, b in zip(ours, theirs, strict=True))


HEADINGS = (
    "workload", "contender", "weights", "runs", "out tok/s", "first token s", "peak MiB", "others' CPU", "ahead by",
    "first token by", "same beginnings",
)  # fmt: skip


def table(found: Sequence[Line]) -> str:
    """The lines as a Markdown table; unlike precisions and disturbed runs are marked and explained below it."""
    rows = [HEADINGS, tuple("-" for _ in HEADINGS), *map(_cells, found)]
    text = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    if any(line.is_unlike for line in found):
        text += "\n\n(!) weights of another class of precision: no fair pair"
    if dropped := sum(line.disturbed for line in found):
        text += f"\n\n{dropped} runs left out: others used more than {MOST_OTHERS:.0%} of the machine"
    return text


def _cells(line: Line) -> tuple[str, ...]:
    ratio = "" if line.ratio is None else line.ratio.text(2) + (" (!)" if line.is_unlike else "")
    return (
        line.workload,
        line.contender,
        line.weights,
        str(line.runs),
        line.tokens_per_second.text(),
        "" if line.first_token is None else line.first_token.text(2),
        line.peak_mib.text(0),
        f"{line.others_share.median:.1%}",
        ratio,
        "" if line.first_token_ratio is None else line.first_token_ratio.text(2),
        "" if line.agreement is None else f"{line.agreement:.0%}",
    )
