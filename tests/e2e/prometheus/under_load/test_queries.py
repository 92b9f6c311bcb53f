"""Every query of every panel and rule has an answer, and shows what has happened."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pagetide_dashboards.files import DASHBOARDS
from pagetide_dashboards.model import Query
from pagetide_dashboards.queries import EVERYTHING, expand
from pagetide_dashboards.rules import ALERTS, RECORDS
from pagetide_dashboards.service import NO_DCGM, NO_GPU

# What this fleet does not have; whatever else a query gives as its reason to be empty is no excuse here.
ABSENT = (NO_GPU, NO_DCGM)


def filled(query: str, board: str) -> str:
    """A panel's query as Grafana sends it, for all that the variables can choose."""
    # A gateway's series are of its own namespace, the others of their service's.
    namespace = "pagetide-system" if board == "pagetide-gateway" else "ns"
    for name, value in (("$__rate_interval", "1m"), ("$__range", "10m"), ("$namespace", namespace)):
        query = query.replace(name, value)
    return re.sub(r"\$(service|model)\b", ".*", query)


def queries() -> dict[str, tuple[Query, str]]:
    """Every query of a panel and its PromQL, by board, panel and legend."""
    return {
        f"{board.uid.removeprefix('pagetide-')}: {panel.title}: {query.legend or 'value'}":
            (query, filled(query.expanded(board.scope), board.uid))
        for board in DASHBOARDS
        for panel in board.panels()
        for query in panel.queries
    }  # fmt: skip


QUERIES = queries()


@pytest.mark.parametrize("name", QUERIES)
def test_a_panels_query_has_an_answer(observed: Any, name: str) -> None:
    query, expression = QUERIES[name]
    assert observed.values(expression) or query.optional in ABSENT, "it never had a value"


def test_a_legend_has_all_its_labels_and_is_that_of_one_series(observed: Any) -> None:
    for name, (query, expression) in QUERIES.items():
        if name.startswith("fleet: Services:"):  # columns of a table, whose rows have the labels
            continue
        found = [series["metric"] for series in observed.ever(expression)]
        legends = [re.sub(r"{{(\w+)}}", lambda match, own=own: own[match[1]], query.legend) for own in found]
        assert len(set(legends)) == len(legends), (name, legends)


def test_nothing_failed_at_the_servers(observed: Any) -> None:
    assert max(observed.values(QUERIES["fleet: Failed requests: {{namespace}}/{{service}}"][1])) == 0


# Panels that are at zero while all is well.
TROUBLE = (
    "service: Preemptions per second: {{mode}}",
    "service: Blocks swapped per second: {{direction}}",
    "service: Block allocations and failures: {{namespace}}/{{service}} failures",
    "scaling: Changes by direction and winner: {{namespace}}/{{service}} {{direction}} by {{winner}}",
    "scaling: What limits scaling: {{namespace}}/{{service}} {{reason}}",
    "gateway: Failed requests: {{namespace}}/{{model_name}}",
    "gateway: Held requests: {{namespace}}/{{model_name}}",
    "gateway: Held requests by outcome: {{outcome}}",
    "gateway: Refused for a limit of the key: {{limit}}",
    "gateway: Retries and broken streams per second: {{namespace}}/{{model_name}} retries",
    "gateway: Retries and broken streams per second: {{namespace}}/{{model_name}} broken streams",
    "gateway: Client disconnects and ejected replicas: {{namespace}}/{{model_name}} client disconnects",
    "gateway: Client disconnects and ejected replicas: {{namespace}}/{{model_name}} ejected replicas",
    "operator: Failed reconciles: failed",
)


@pytest.mark.parametrize("name", TROUBLE)
def test_a_panel_shows_the_trouble_that_there_was(observed: Any, name: str) -> None:
    assert max(observed.values(QUERIES[name][1])) > 0


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.name)
def test_a_recorded_query_is_recorded(observed: Any, record: Any) -> None:
    assert observed.values(record.name)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: a.name)
def test_an_alert_can_be_asked_and_its_series_are_there(observed: Any, alert: Any) -> None:
    expression = expand(alert.text, EVERYTHING)
    observed.ever(expression)
    for selector in re.findall(r"pagetide[:_][\w:]+(?:\{[^}]*\})?", expression):
        seen = observed.ever(re.sub(r'(code|finish_reason|outcome|reason)=~?"[^"]*"', r'\1=~".*"', selector))
        assert seen or alert.optional, selector


def test_prometheus_takes_the_rules(observed: Any) -> None:
    groups = observed.get("/api/v1/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(RECORDS) + len(ALERTS)
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []
