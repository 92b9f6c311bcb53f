"""What a dashboard is made of. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from .queries import expand

Kind = Literal["timeseries", "stat", "heatmap", "table"]


@dataclasses.dataclass(frozen=True)
class Query:
    """One query of a panel.

    Attributes:
        text: PromQL with short names, see `queries`.
        legend: with labels as `{{label}}`.
        optional: why it may have no result on a healthy fleet; empty where it always must have one.
        scope: its own matchers, where those of its dashboard do not fit.
        unit, warn, alarm: of a table's column.
    """

    text: str
    legend: str = ""
    optional: str = ""
    scope: str | None = None
    unit: str = "none"
    warn: float | None = None
    alarm: float | None = None

    def expanded(self, scope: str) -> str:
        """Its PromQL on a dashboard of this scope."""
        return expand(self.text, scope if self.scope is None else self.scope)


@dataclasses.dataclass(frozen=True)
class Panel:
    """One panel. `description` says what it shows and what to do when it is high (or low).

    `warn` and `alarm` are the values from which it is coloured; `stack` adds its series up.
    """

    title: str
    unit: str
    description: str
    queries: Sequence[Query]
    kind: Kind = "timeseries"
    width: int = 8
    height: int = 8
    warn: float | None = None
    alarm: float | None = None
    stack: bool = False
    maximum: float | None = None


@dataclasses.dataclass(frozen=True)
class Row:
    """Panels under one heading, laid out from left to right."""

    title: str
    panels: Sequence[Panel]


@dataclasses.dataclass(frozen=True)
class Variable:
    """A choice at the top of a dashboard, filled from a label's values; `All` matches series without the label too.

    `sources`: short names of the metrics whose label it is; `scope`: matchers that narrow them.
    """

    name: str
    label: str
    sources: Sequence[str]
    scope: str = ""


@dataclasses.dataclass(frozen=True)
class Dashboard:
    """One dashboard. `scope`: the matchers that its queries get, made of its variables."""

    uid: str
    title: str
    description: str
    scope: str
    variables: Sequence[Variable]
    rows: Sequence[Row]

    def panels(self) -> list[Panel]:
        """All panels, from top to bottom."""
        return [panel for row in self.rows for panel in row.panels]
