"""What a dashboard is made of, and its JSON as Grafana 10.2 and later reads it. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from .queries import expand

Json = dict[str, Any]
Kind = Literal["timeseries", "stat", "heatmap", "table"]

COLUMNS = 24
SCHEMA_VERSION = 38
# Labels of which there may be many values.
_MANY = ("service", "pod", "replica", "model_name")
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


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

    def json(self) -> Json:
        """What a user imports."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["pagetide"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "10s",
            "time": {"from": "now-30m", "to": "now"},
            "templating": {"list": [_datasource(), *(_variable(v) for v in self.variables)]},
            "links": [_links()],
            "panels": self._laid_out(),
        }

    def _laid_out(self) -> list[Json]:
        out: list[Json] = []
        top = 0
        for row in self.rows:
            place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
            out.append({"id": len(out) + 1, "type": "row", "title": row.title, "gridPos": place, "collapsed": False})
            left, top, height = 0, top + 1, 0
            for panel in row.panels:
                if left + panel.width > COLUMNS:
                    left, top, height = 0, top + height, 0
                place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
                out.append({"id": len(out) + 1, "gridPos": place, **panel_json(panel, self.scope)})
                left, height = left + panel.width, max(height, panel.height)
            top += height
        return out


def panel_json(panel: Panel, scope: str) -> Json:
    """A panel without id and place."""
    reasons = sorted({q.optional for q in panel.queries if q.optional})
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": " ".join([panel.description, *(f"Empty {reason}." for reason in reasons)]),
        "datasource": DATASOURCE,
        "targets": [_target(query, index, panel.kind, scope) for index, query in enumerate(panel.queries)],
        **_LOOKS[panel.kind](panel),
    }


def _target(query: Query, index: int, kind: Kind, scope: str) -> Json:
    out: Json = {
        "refId": chr(ord("A") + index),
        "datasource": DATASOURCE,
        "expr": query.expanded(scope),
        "legendFormat": query.legend or "__auto",
    }
    if kind == "heatmap":
        out["format"] = "heatmap"
    if kind == "table":
        out |= {"format": "table", "instant": True}
    if kind == "stat":
        out["instant"] = True
    return out


def _thresholds(panel: Panel | Query) -> Json:
    steps: list[Json] = [{"color": "green", "value": None}]
    if panel.warn is not None:
        steps.append({"color": "orange", "value": panel.warn})
    if panel.alarm is not None:
        steps.append({"color": "red", "value": panel.alarm})
    return {"mode": "absolute", "steps": steps}


def _defaults(panel: Panel, **custom: Any) -> Json:
    out: Json = {"unit": panel.unit, "thresholds": _thresholds(panel), "custom": custom, "min": 0}
    if panel.maximum is not None:
        out["max"] = panel.maximum
    return out


def _timeseries(panel: Panel) -> Json:
    has_limits = panel.warn is not None or panel.alarm is not None
    custom = {
        "lineWidth": 1,
        "fillOpacity": 30 if panel.stack else 8,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stack else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if has_limits else "off"},
    }
    return {
        "fieldConfig": {"defaults": _defaults(panel, **custom), "overrides": []},
        "options": {"legend": _legend(panel), "tooltip": {"mode": "multi", "sort": "desc"}},
    }


def _legend(panel: Panel) -> Json:
    """Of what may be fifty services or replicas, a table that is scrolled, with the largest on top."""
    if any(f"{{{{{label}}}}}" in query.legend for query in panel.queries for label in _MANY):
        return {
            "displayMode": "table",
            "placement": "bottom",
            "showLegend": True,
            "calcs": ["lastNotNull", "max"],
            "sortBy": "Max",
            "sortDesc": True,
        }
    return {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}


def _stat(panel: Panel) -> Json:
    reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    return {
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": {"reduceOptions": reduce, "colorMode": "value", "graphMode": "area", "textMode": "auto"},
    }


def _heatmap(panel: Panel) -> Json:
    return {
        "fieldConfig": {"defaults": {"custom": {}}, "overrides": []},
        "options": {
            "calculate": False,
            "yAxis": {"unit": panel.unit},
            "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
            "cellGap": 1,
            "tooltip": {"mode": "single", "yHistogram": False},
        },
    }


def _table(panel: Panel) -> Json:
    """Rows by namespace and service, one column a query, named as its legend; the service leads to its dashboard."""
    columns = [(f"Value #{chr(ord('A') + index)}", query) for index, query in enumerate(panel.queries)]
    order = ["namespace", "service", *(name for name, _ in columns)]
    organize = {
        "renameByName": {name: query.legend for name, query in columns},
        "excludeByName": {"Time": True},
        "indexByName": {name: index for index, name in enumerate(order)},
    }
    link = {"title": "in depth", "url": SERVICE_LINK, "targetBlank": False}
    overrides = [_override("service", links=[link]), *(_override(name, **_column(query)) for name, query in columns)]
    return {
        "fieldConfig": {"defaults": _defaults(panel), "overrides": overrides},
        "options": {"showHeader": True, "cellHeight": "sm"},
        "transformations": [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}],
    }


# From a row of the table to the dashboard of its service, at the same time range.
SERVICE_LINK = (
    "/d/pagetide-service?var-datasource=${datasource}&var-namespace=${__data.fields.namespace}"
    "&var-service=${__data.fields.service}&${__url_time_range}"
)


def _column(query: Query) -> Json:
    out: Json = {"unit": query.unit}
    if query.warn is not None or query.alarm is not None:
        out |= {"thresholds": _thresholds(query), "custom.cellOptions": {"type": "color-text"}}
    return out


def _override(column: str, **properties: Any) -> Json:
    found = [{"id": name, "value": value} for name, value in properties.items()]
    return {"matcher": {"id": "byName", "options": column}, "properties": found}


_LOOKS = {"timeseries": _timeseries, "stat": _stat, "heatmap": _heatmap, "table": _table}


def _datasource() -> Json:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}}


def _variable(variable: Variable) -> Json:
    names = "|".join(expand(f"@{name}", "") for name in variable.sources)
    matchers = ",".join(filter(None, (f'__name__=~"{names}"', variable.scope)))
    query = f"label_values({{{matchers}}}, {variable.label})"
    return {
        "name": variable.name,
        "label": variable.name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _links() -> Json:
    return {
        "type": "dashboards",
        "title": "Pagetide",
        "tags": ["pagetide"],
        "asDropdown": True,
        "keepTime": True,
        "includeVars": True,
    }
