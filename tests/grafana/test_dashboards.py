"""Dashboards and rules: what is committed is what the code makes, and asks only for what the contract has."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from pagetide_dashboards.files import DASHBOARDS, ROOT, generated
from pagetide_dashboards.grafana_json import COLUMNS
from pagetide_dashboards.model import Panel, Query
from pagetide_dashboards.queries import SERVICE, expand
from pagetide_dashboards.rules import RECORDS
from pagetide_spec.metrics import DCGM_METRICS, GATEWAY_METRICS, OPERATOR_METRICS, SERVER_METRICS

FILES = sorted((ROOT / "grafana/dashboards").glob("*.json"))
RULES = yaml.safe_load((ROOT / "grafana/rules.yaml").read_text())
# PromQL's own words; whatever else stands for itself in a query is the name of a series.
WORDS = {"by", "on", "and", "or", "unless", "group_left", "sum", "max", "min", "avg", "count"}


def test_the_committed_files_are_what_the_code_makes():
    for path, text in generated().items():
        assert path.read_text("utf-8") == text, f"{path.relative_to(ROOT)}: run `make generate`"
    committed = {*FILES, *(ROOT / "charts/pagetide/files/dashboards").glob("*")}
    assert committed <= generated().keys(), "a dashboard that nobody makes"


def names_in(query: str) -> set[str]:
    """Names of series in PromQL: identifiers that are neither words, nor functions, nor labels, nor durations."""
    text = re.sub(r'"[^"]*"', "", query)
    text = re.sub(r"\b(by|on|group_left|ignoring)\s*\([^)]*\)", r"\1 ", text)
    text = re.sub(r"\{[^}]*\}|\[[^]]*\]", " ", text)
    names = re.finditer(r"(?<![\w:.])[a-zA-Z_:][\w:]*", text)
    return {m[0] for m in names if m[0] not in WORDS and not text[m.end() :].lstrip().startswith("(")}


def known_names() -> set[str]:
    known = set(DCGM_METRICS) | {record.name for record in RECORDS}
    for metric in (*SERVER_METRICS.values(), *GATEWAY_METRICS.values(), *OPERATOR_METRICS.values()):
        parts = ("_bucket", "_sum", "_count") if metric.buckets else ("",)
        known |= {metric.full_name + part for part in parts}
    return known


def queries_of(board: dict) -> list[str]:
    out = [t["expr"] for panel in board["panels"] for t in panel.get("targets", [])]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            selector = re.fullmatch(r"label_values\((.*), \w+\)", variable["query"]["query"])[1]
            out += re.search(r'__name__=~"([^"]*)"', selector)[1].split("|")
    return out


def test_five_dashboards():
    assert [path.stem for path in FILES] == ["fleet", "gateway", "operator", "scaling", "service"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_dashboard_asks_only_for_what_the_contract_has(path):
    for query in queries_of(json.loads(path.read_text())):
        assert names_in(query), query
        assert names_in(query) <= known_names(), query


def test_a_rule_asks_only_for_what_the_contract_has():
    for group in RULES["groups"]:
        for rule in group["rules"]:
            assert names_in(rule["expr"]) <= known_names() | {"up"}, rule["expr"]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        pytest.param('sum by (le) (rate(x_bucket{a="b"}[5m]))', {"x_bucket"}, id="functions, labels"),
        pytest.param("a:b:c > 0.5 and on (pod) other", {"a:b:c", "other"}, id="recorded, joined"),
        pytest.param("x / on (y) group_left () (sum by (y) (z) > 0) or vector(0)", {"x", "z"}, id="group_left"),
    ],
)
def test_how_names_are_found(query, names):
    assert names_in(query) == names


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("@no_such_metric", id="no metric"),
        pytest.param("@request_seconds", id="a histogram without its part"),
        pytest.param("@requests_running_bucket", id="no histogram"),
        pytest.param('@requests_total{reason="x"}', id="no such label"),
        pytest.param('@operator_leader{model_name="x"}', id="the operator knows no models"),
    ],
)
def test_a_wrong_name_is_refused(text):
    with pytest.raises(ValueError, match=r"is no metric|has no label"):
        expand(text, SERVICE)


PANELS = [(board, panel) for board in DASHBOARDS for panel in board.panels()]


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=lambda x: x.title if isinstance(x, Panel) else "")
def test_a_panel_says_what_it_means(board, panel, camel_names):
    assert panel.unit
    assert len(panel.description) > 20
    assert panel.description.endswith(".")
    assert set(re.findall(r"\b[a-z]+[A-Z]\w*", panel.description)) <= camel_names, "advice to turn what is not there"
    assert panel.warn is None or panel.alarm is None or panel.warn < panel.alarm
    assert all(isinstance(q, Query) for q in panel.queries)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_panels_do_not_overlap_and_variables_are_used(path):
    board = json.loads(path.read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    text = json.dumps(board["panels"])
    for variable in board["templating"]["list"]:
        assert "${datasource}" in text if variable["name"] == "datasource" else f'\\"${variable["name"]}\\"' in text
    used = set(re.findall(r"\$(\w+)", text)) - {"__rate_interval", "__range", "labels"}
    assert used <= {v["name"] for v in board["templating"]["list"]}
