"""A dashboard's JSON, as Grafana 10.2 and later reads it. Pure."""

from __future__ import annotations

from typing import Any

from .model import Dashboard, Kind, Panel, Query, Variable
from .queries import expand

Json = dict[str, Any]

COLUMNS = 24
SCHEMA_VERSION = 38
# Labels of which there may be many values.
_MANY = ("service", "pod", "replica", "model_name")
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard_json(board: Dashboard) -> Json:
    """What a user imports."""
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.description,
        "tags": ["pagetide"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_datasource(), *(_variable(v) for v in board.variables)]},
        "links": [_links()],
        "panels": _laid_out(board),
    }


def _laid_out(board: Dashboard) -> list[Json]:
    out: list[Json] = []
    top = 0
    for row in board.rows:
        place = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        out.append({"id": len(out) + 1, "type": "row", "title": row.title, "gridPos": place, "collapsed": False})
        left, top, height = 0, top + 1, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top, height = 0, top + height, 0
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            out.append({"id": len(out) + 1, "gridPos": place, **panel_json(panel, board.scope)})
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
