"""Draws a frame with rich. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .exposition import Change
from .frame import Frame, Row

NOTHING = "–"
GOOD, WARN, BAD = "green", "yellow", "red"
# From where a ratio is coloured: nearly full, full.
NEARLY, FULL = 0.8, 0.95


def seconds(value: float | None) -> str:
    """`12 ms`, `1.25 s`."""
    if value is None:
        return NOTHING
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def percent(value: float | None) -> str:
    """`42 %`."""
    return NOTHING if value is None else f"{value * 100:.0f} %"


def count(value: float | None) -> str:
    """`7`."""
    return NOTHING if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """`0.4`, `1,250`."""
    if value is None:
        return NOTHING
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def fullness(value: float | None) -> Text:
    """A share, coloured as it nears 1."""
    style = "" if value is None or value < NEARLY else WARN if value < FULL else BAD
    return Text(percent(value), style)


_STATES = {"ready": GOOD, "draining": "dim", "starting": WARN, "unready": BAD, "ejected": BAD, "no answer": BAD}
_COLUMNS: tuple[tuple[str, Callable[[Row], str | Text]], ...] = (
    ("service", lambda r: r.service),
    ("replica", lambda r: r.replica),
    ("state", lambda r: Text(r.state, _STATES.get(r.state.partition(":")[0], ""))),
    ("running", lambda r: count(r.running)),
    ("waiting", lambda r: Text(count(r.waiting), WARN if r.waiting else "")),
    ("batch", lambda r: fullness(r.batch)),
    ("KV", lambda r: fullness(r.kv)),
    ("hits", lambda r: percent(r.hits)),
    ("tokens/s", lambda r: rate(r.tokens)),
    ("queue p95", lambda r: seconds(r.queue)),
    ("first token p95", lambda r: seconds(r.first_token)),
)


def draw(frame: Frame) -> RenderableType:
    """The whole screen."""
    parts: list[RenderableType] = [Text(frame.title, "bold")]
    parts += [Text(line) for line in frame.services]
    parts.append(_replicas(frame.rows))
    if frame.detail is not None:
        parts.append(_detail(frame.detail))
    if frame.note:
        parts.append(Text(frame.note, WARN))
    return Group(*parts)


def _replicas(rows: Sequence[Row]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for index, (name, _) in enumerate(_COLUMNS):
        table.add_column(name, justify="left" if index < 3 else "right", no_wrap=index != 2)
    for row in rows:
        table.add_row(*(read(row) for _, read in _COLUMNS))
    return table


def _detail(change: Change) -> Columns:
    blocks = (
        _block("a second", _rates(change)),
        _block("p50 / p95", _times(change)),
        _block("KV blocks", _blocks(change)),
        _block("ended, a second", _ends(change)),
        _block("GPU", _gpus(change)),
    )
    return Columns([block for block in blocks if block.row_count], padding=(1, 4))


def _block(title: str, lines: Iterable[tuple[str, str | Text]]) -> Table:
    table = Table(title=title, title_style="dim", title_justify="left", box=None, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for line in lines:
        table.add_row(*line)
    return table


def _rates(change: Change) -> list[tuple[str, str | Text]]:
    names = (
        ("prefills", "prefills_total"),
        ("decodes", "decodes_total"),
        ("prompt tokens", "prompt_tokens_total"),
        ("steps", "engine_steps_total"),
    )
    out: list[tuple[str, str | Text]] = [(title, rate(change.rate(name))) for title, name in names]
    # What should not happen is coloured where it does.
    for title, name in (
        ("preemptions", "preemptions_total"),
        ("allocation failures", "kv_block_allocation_failures_total"),
    ):
        found = change.rate(name)
        out.append((title, Text(rate(found), BAD if found else "")))
    return out


def _times(change: Change) -> list[tuple[str, str | Text]]:
    names = (
        ("queue", "request_queue_seconds"),
        ("first token", "time_to_first_token_seconds"),
        ("between tokens", "inter_token_seconds"),
        ("step", "engine_step_seconds"),
        ("whole request", "request_seconds"),
    )
    return [(t, " / ".join(seconds(change.quantile(n, share)) for share in (0.5, 0.95))) for t, n in names]


def _blocks(change: Change) -> list[tuple[str, str | Text]]:
    now = change.after
    return [(state, count(now.value("kv_blocks", state))) for state in ("used", "cached", "free", "swapped")]


def _ends(change: Change) -> list[tuple[str, str | Text]]:
    return [(why, rate(change.rate("requests_total", why))) for why in change.after.labels("requests_total")]


def _gpus(change: Change) -> list[tuple[str, str | Text]]:
    out: list[tuple[str, str | Text]] = []
    for gpu in change.after.labels("gpu_utilization_ratio"):
        used, total = (change.after.value(f"gpu_memory_{what}_bytes", gpu) for what in ("used", "total"))
        memory = used / total if used is not None and total else None
        out.append((gpu, f"{percent(change.after.value('gpu_utilization_ratio', gpu))}, memory {percent(memory)}"))
    return out
