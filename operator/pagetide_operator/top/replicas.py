"""The table of replicas, which gives up columns where the terminal is narrow and rows where it is low. Pure.

A number is never cut: half of one is another number. Names lose their beginning, of which many share one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from .frame import Row
from .numbers import BAD, GOOD, WARN, count, fullness, percent, rate, seconds

_STATES = {"ready": GOOD, "draining": "dim", "starting": WARN, "unready": BAD, "ejected": BAD, "no answer": BAD}
_GAP = 2
# A name or state is cut to so many characters before a column of numbers is left out.
_LEAST = 9


@dataclasses.dataclass(frozen=True)
class Column:
    """One column. `rank`: those with the largest are left out first; 0 never."""

    name: str
    read: Callable[[Row], Text]
    rank: int = 0


COLUMNS = (
    Column("service", lambda r: Text(r.service)),
    Column("replica", lambda r: Text(r.replica)),
    Column("state", lambda r: Text(r.state, _STATES.get(r.state.partition(":")[0], ""))),
    Column("running", lambda r: Text(count(r.running)), 1),
    Column("waiting", lambda r: Text(count(r.waiting), WARN if r.waiting else ""), 2),
    Column("batch", lambda r: fullness(r.batch), 7),
    Column("KV", lambda r: fullness(r.kv), 3),
    Column("hits", lambda r: Text(percent(r.hits)), 8),
    Column("tokens/s", lambda r: Text(rate(r.tokens)), 4),
    Column("queue p95", lambda r: Text(seconds(r.queue)), 5),
    Column("first token p95", lambda r: Text(seconds(r.first_token)), 6),
)


@dataclasses.dataclass(frozen=True)
class Replicas:
    """The rows. `room`: how many lines there are for them and the heading; None: as many as they want."""

    rows: Sequence[Row]
    room: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """A table that fits."""
        rows, hidden = self._rows()
        used = [c for c in COLUMNS if c.name != "service" or any(r.service for r in rows)]
        cells = {c.name: [c.read(row) for row in rows] for c in used}
        widths = fit({c.name: _natural(c.name, cells[c.name]) for c in used}, options.max_width)
        table = Table(box=None, padding=(0, _GAP, 0, 0), header_style="dim")
        for name, width in widths.items():
            is_text = _RANKS[name] == 0
            table.add_column(name, justify="left" if is_text else "right", no_wrap=True, width=width)
        for index in range(len(rows)):
            table.add_row(*(_cut(name, cells[name][index], width) for name, width in widths.items()))
        yield table
        if hidden:
            yield Text(f"... {hidden} more replicas", "dim")

    def _rows(self) -> tuple[Sequence[Row], int]:
        """Those there is room for, first of all those with trouble; and how many there are besides."""
        if self.room is None or len(self.rows) + 1 <= self.room:
            return self.rows, 0
        shown = max(1, self.room - 2)
        first = sorted(self.rows, key=lambda r: (r.state == "ready", -(r.waiting or 0)))
        return first[:shown], len(self.rows) - shown


_RANKS = {column.name: column.rank for column in COLUMNS}


def _natural(name: str, cells: Sequence[Text]) -> int:
    return max(len(name), *(cell.cell_len for cell in cells), 0)


def fit(natural: dict[str, int], room: int) -> dict[str, int]:
    """The columns that are shown and their widths, so that all of them together fit: texts are cut, numbers are not."""
    widths = dict(natural)
    texts = [name for name in widths if not _RANKS[name]]
    least = {name: min(width, _LEAST) for name, width in widths.items() if name in texts}
    for name in sorted(widths, key=lambda name: -_RANKS[name]):
        if _total({**widths, **least}) <= room:
            break
        if _RANKS[name]:
            del widths[name]
    while _total(widths) > room and any(widths[name] > 1 for name in texts):
        widths[max(texts, key=lambda name: widths[name])] -= 1
    return widths


def _total(widths: dict[str, int]) -> int:
    return sum(widths.values()) + _GAP * len(widths)


def _cut(name: str, text: Text, width: int) -> Text:
    """A name without its beginning, another text without its end, where it is too long."""
    if text.cell_len <= width:
        return text
    plain = text.plain
    return Text("…" + plain[-(width - 1) :] if name in ("service", "replica") else plain[: width - 1] + "…", text.style)
