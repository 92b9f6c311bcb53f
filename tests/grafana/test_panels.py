"""Panels' queries over series whose every value is known: services with one name in two namespaces, servers that begin
again, what is absent or no number. `promtool` evaluates them as Prometheus does.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagetide_dashboards.files import DASHBOARDS

PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")
pytestmark = pytest.mark.skipif(
    PROMTOOL is None, reason='needs promtool: put it on PATH, name it in PROMTOOL, or: eval "$(.ci/observers)"'
)
QUERIES = {
    (board.uid.removeprefix("pagetide-"), panel.title, query.legend): query.expanded(board.scope)
    for board in DASHBOARDS
    for panel in board.panels()
    for query in panel.queries
}
SERVICE = "{{namespace}}/{{service}}"
POD = "{{namespace}}/{{pod}}"


@dataclasses.dataclass(frozen=True)
class Case:
    """A query, what is chosen, the series there are (a look every 15 s), and what it answers at the end."""

    board: str
    panel: str
    legend: str
    series: Mapping[str, str]
    answer: Sequence[tuple[Mapping[str, str], float]]
    namespace: str = ".*"
    service: str = ".*"
    at: str = "1m"
    range: str = "1h"

    def promql(self) -> str:
        """Its query as Grafana sends it."""
        text = QUERIES[self.board, self.panel, self.legend]
        for name, value in (("$__rate_interval", "1m"), ("$__range", self.range), ("$namespace", self.namespace)):
            text = text.replace(name, value)
        return re.sub(r"\$(service|model)\b", self.service, text)


def of(name: str, namespace: str, service: str, pod: str = "p", **more: str) -> str:
    """A series of a server."""
    own = {"namespace": namespace, "service": service, "pod": pod, "model_name": service, **more}
    return f"pagetide_{name}{labels(own)}"


def labels(found: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{key}="{value}"' for key, value in found.items()) + "}"


MODEL = "{{namespace}}/{{model_name}}"
AT_A = {"namespace": "a", "model_name": "llm"}
A, B = {"namespace": "a", "service": "llm"}, {"namespace": "b", "service": "llm"}
QUEUE = "request_queue_seconds_bucket"
# In `a` all requests have waited less than 0.1 s, in `b` all between 1 and 2 s.
TWO_QUEUES = {
    of(QUEUE, "a", "llm", le="0.1"): "0+60x4", of(QUEUE, "a", "llm", le="+Inf"): "0+60x4",
    of(QUEUE, "b", "llm", le="0.1"): "0x4", of(QUEUE, "b", "llm", le="1"): "0x4",
    of(QUEUE, "b", "llm", le="2"): "0+60x4", of(QUEUE, "b", "llm", le="+Inf"): "0+60x4",
}  # fmt: skip
IDLE_QUEUE = {of(QUEUE, "b", "llm", le=le): "7x4" for le in ("0.1", "+Inf")}
QUEUE_OF_A = {series: values for series, values in TWO_QUEUES.items() if 'namespace="a"' in series}
RUNNING = {of("requests_running", "a", "llm"): "1x4", of("requests_running", "b", "llm"): "5x4"}
HIT, LOOKED_UP = "prefix_cache_hit_tokens_total", "prefix_cache_query_tokens_total"
DCGM = {
    f'DCGM_FI_DEV_GPU_UTIL{{namespace="a",pod="{pod}",gpu="0",service="dcgm-exporter"}}': f"{value}x4"
    for pod, value in (("llm-7d-x1", 50), ("llm-big-7d-x1", 90), ("training", 100))
}
OURS = {
    of("requests_running", "a", service, pod): "1x4"
    for service, pod in (("llm", "llm-7d-x1"), ("llm-big", "llm-big-7d-x1"))
}
FIRST_CHANGE = {"namespace": "a", "service": "llm", "direction": "up", "winner": "wake"}
CASES = (
    pytest.param(
        Case("service", "Running, waiting, swapped", f"{SERVICE} running", RUNNING, [(A, 1), (B, 5)]),
        id="two services with one name are not added up",
    ),
    pytest.param(
        Case("service", "Running, waiting, swapped", f"{SERVICE} running", RUNNING, [(B, 5)], namespace="b"),
        id="the namespace that is chosen is the only one",
    ),
    pytest.param(
        Case("service", "Running, by replica", POD, RUNNING, [({**A, "pod": "p"}, 1), ({**B, "pod": "p"}, 5)]),
        id="nor are their pods",
    ),
    pytest.param(
        Case("service", "Queue time", f"{SERVICE} p50", TWO_QUEUES, [(A, 0.05), (B, 1.5)]),
        id="each of them has a queue time of its own",
    ),
    pytest.param(
        Case("fleet", "Services", "queue p95", QUEUE_OF_A | IDLE_QUEUE, [(A, 0.095)]),
        id="a quantile of nothing is left out of the table",
    ),
    pytest.param(
        Case("fleet", "Worst queue time, p95", "", QUEUE_OF_A | IDLE_QUEUE, [({}, 0.095)]),
        id="a service without requests does not hide the worst queue time of the others",
    ),
    pytest.param(Case("fleet", "Worst queue time, p95", "", IDLE_QUEUE, []), id="no queue time while nobody asks"),
    pytest.param(
        Case("fleet", "Tokens per second", f"{SERVICE} generated",
             {of("generation_tokens_total", "a", "llm"): "0 100 200 100 200"}, [(A, 400 / 60)]),
        id="a server that began anew counts from nothing",
    ),
    pytest.param(
        Case("fleet", "Prefix cache hit ratio", SERVICE,
             {of(HIT, "a", "llm"): "0 50 100 50 100", of(LOOKED_UP, "a", "llm"): "0 100 200 100 200"}, [(A, 0.5)]),
        id="its hit ratio stays below 1",
    ),
    pytest.param(
        Case("fleet", "Prefix cache hit ratio", SERVICE, {of(HIT, "a", "llm"): "5x4", of(LOOKED_UP, "a", "llm"): "9x4"},
             []),
        id="no hit ratio while no prompt comes in",
    ),
    pytest.param(
        Case("fleet", "Services", "replica-hours",
             {of("kv_capacity_tokens", "a", "llm", "p"): "9x240",
              of("kv_capacity_tokens", "a", "llm", "q"): "9x119 stale",
              of("kv_capacity_tokens", "b", "llm", "p"): "9x240"}, [(A, 361 / 240), (B, 241 / 240)], at="60m"),
        id="a replica costs as long as it is there",
    ),
    pytest.param(
        Case("gateway", "Failed requests", MODEL,
             {'pagetide_gateway_requests_total{namespace="a",model_name="llm",code="200"}': "0+10x4"}, [(AT_A, 0)]),
        id="a gateway without failures shows zero",
    ),
    pytest.param(
        Case("gateway", "Share of each replica", f"{MODEL} {{{{replica}}}}",
             {f'pagetide_gateway_replica_requests_in_flight{{namespace="a",model_name="{model}",replica="r-0"}}':
              f"{count}x4" for model, count in (("a/llm", 1), ("b/llm", 4))},
             [({"namespace": "a", "model_name": model, "replica": "r-0"}, 1) for model in ("a/llm", "b/llm")]),
        id="replicas of two models may have one name",
    ),
    pytest.param(
        Case("gateway", "Replicas by state", f"{MODEL} {{{{state}}}}",
             {'pagetide_gateway_replicas{namespace="a",model_name="llm",state="ready"}': "0x4",
              'pagetide_gateway_replicas{namespace="b",model_name="llm",state="ready"}': "3x4"},
             [({**AT_A, "state": "ready"}, 0), ({**AT_A, "namespace": "b", "state": "ready"}, 3)]),
        id="a gateway without replicas is not hidden by that of another namespace",
    ),
    pytest.param(
        Case("service", "GPU utilization", f"{POD} {{{{gpu}}}} (DCGM)", DCGM | OURS,
             [({"namespace": "a", "pod": "llm-7d-x1", "gpu": "0"}, 0.5)], service="llm"),
        id="of DCGM's pods only those of the service, though another's name begins so",
    ),
    pytest.param(
        Case("scaling", "Changes by direction and winner", f"{SERVICE} {{{{direction}}}} by {{{{winner}}}}",
             {f"pagetide_operator_scale_changes_total{labels(FIRST_CHANGE)}": "0 1x39"}, [(FIRST_CHANGE, 1)],
             at="10m"),
        id="a first change is seen",
    ),
)  # fmt: skip


def one_test(case: Case) -> dict[str, Any]:
    expected = [{"labels": labels(found), "value": value} for found, value in case.answer]
    return {
        "interval": "15s",
        "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
        "promql_expr_test": [{"expr": case.promql(), "eval_time": case.at, "exp_samples": expected}],
    }


@pytest.mark.parametrize("case", CASES)
def test_a_panel_shows_what_is_so(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "15s", "tests": [one_test(case)]}))
    done = subprocess.run([str(PROMTOOL), "test", "rules", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_legend_that_names_a_service_a_model_or_a_pod_names_its_namespace() -> None:
    for board, panel, legend in QUERIES:
        if any(f"{{{{{label}}}}}" in legend for label in ("service", "pod", "model_name")):
            assert "{{namespace}}" in legend, (board, panel, legend)
