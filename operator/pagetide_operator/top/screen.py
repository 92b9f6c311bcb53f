"""Draws a frame with rich. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from .exposition import Change
from .frame import Frame
from .numbers import BAD, WARN, count, percent, rate, seconds
from .replicas import Replicas

# Of a screen that is too low for all, services get so much at most.
_SERVICES_SHARE = 0.25


@dataclasses.dataclass(frozen=True)
class Screen:
    """The whole screen, as wide and as high as there is room; without an end where there is no screen."""

    frame: Frame

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Title, services, replicas, one server's details, a note."""
        frame, room = self.frame, options.height
        yield Text(frame.title, "bold")
        services = _at_most(frame.services, None if room is None else max(2, int(room * _SERVICES_SHARE)))
        yield from services
        left = None if room is None else room - 1 - len(services) - (1 if frame.note else 0)
        yield Replicas(frame.rows, left if frame.detail is None else None)
        if frame.detail is not None:
            yield _detail(frame.detail)
        if frame.note:
            yield Text(frame.note, WARN)


def _at_most(lines: Sequence[str], room: int | None) -> list[RenderableType]:
    """As many lines as there is room for; the last one counts the others."""
    if room is None or len(lines) <= room:
        return [Text(line) for line in lines]
    return [*(Text(line) for line in lines[: room - 1]), Text(f"... {len(lines) - room + 1} more services", "dim")]


def _detail(change: Change) -> Columns:
    blocks = (
        _block("per second", _rates(change)),
        _block("p50 / p95", _times(change)),
        _block("KV blocks", _blocks(change)),
        _block("ended/s", _ends(change)),
        _block("GPU", _gpus(change)),
    )
    return Columns([block for block in blocks if block.row_count], padding=(1, 4))


def _block(title: str, lines: Iterable[tuple[str, str | Text]]) -> Table:
    table = Table(title=title, title_style="dim", title_justify="left", box=None, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in lines:
        table.add_row(Text(name), value)
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
