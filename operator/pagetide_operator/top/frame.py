"""What is on the screen, from any source. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .exposition import Change


@dataclasses.dataclass(frozen=True)
class Row:
    """One replica. None: not known. Ratios are 0 to 1, times in seconds."""

    service: str
    replica: str
    state: str
    running: float | None = None
    waiting: float | None = None
    batch: float | None = None
    kv: float | None = None
    hits: float | None = None
    tokens: float | None = None
    queue: float | None = None
    first_token: float | None = None


@dataclasses.dataclass(frozen=True)
class Frame:
    """One scrape of everything. `detail` is there where all is about one server; `note` says what cannot be seen."""

    title: str
    rows: Sequence[Row]
    services: Sequence[str] = ()
    detail: Change | None = None
    note: str = ""


def row_of(service: str, replica: str, state: str, change: Change) -> Row:
    """A replica's row from two scrapes of its metrics."""
    now = change.after
    waiting = (now.value("requests_waiting") or 0.0) + (now.value("requests_swapped") or 0.0)
    return Row(
        service,
        replica,
        state,
        running=now.value("requests_running"),
        waiting=waiting,
        batch=now.value("batch_utilization_ratio"),
        kv=now.value("kv_cache_utilization_ratio"),
        hits=change.ratio("prefix_cache_hit_tokens_total", "prefix_cache_query_tokens_total"),
        tokens=change.rate("generation_tokens_total"),
        queue=change.quantile("request_queue_seconds", 0.95),
        first_token=change.quantile("time_to_first_token_seconds", 0.95),
    )
