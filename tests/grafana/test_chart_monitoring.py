"""What the chart brings for Prometheus and Grafana."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from pagetide_dashboards.files import DASHBOARDS, ROOT
from pagetide_dashboards.grafana_json import dashboard_json
from pagetide_dashboards.rules import rules

HELM = os.environ.get("HELM") or shutil.which("helm")
pytestmark = pytest.mark.skipif(HELM is None, reason="needs helm: put it on PATH, or name it in HELM")
MONITORING = "--api-versions=monitoring.coreos.com/v1"


def rendered(*flags: str) -> dict[tuple[str, str], Any]:
    """(kind, name) -> manifest."""
    command = [str(HELM), "template", "release", str(ROOT / "charts/pagetide"), "--namespace=x", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {(d["kind"], d["metadata"]["name"]): d for d in yaml.safe_load_all(done.stdout) if d}


def test_the_dashboards_are_there_for_the_sidecar():
    found = rendered()["ConfigMap", "pagetide-dashboards"]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    boards = {name: json.loads(text) for name, text in found["data"].items()}
    assert boards == {f"{board.uid}.json": dashboard_json(board) for board in DASHBOARDS}
    assert sum(map(len, found["data"].values())) < 900_000  # of 1 MiB that a ConfigMap may hold


def test_label_and_folder_can_be_chosen():
    flags = ("--set", "monitoring.dashboards.label=boards", "--set", "monitoring.dashboards.annotations.folder=LLM")
    metadata = rendered(*flags)["ConfigMap", "pagetide-dashboards"]["metadata"]
    assert metadata["labels"]["boards"] == "1"
    assert metadata["annotations"] == {"folder": "LLM"}


def test_rules_and_monitors_where_the_cluster_has_their_kinds():
    without = {kind for kind, _ in rendered()}
    assert not without & {"PrometheusRule", "ServiceMonitor"}
    found = rendered(MONITORING, "--set", "gateway.enabled=true", "--set", "monitoring.rules.labels.release=prom")
    assert found["PrometheusRule", "pagetide"]["spec"] == rules()
    assert found["PrometheusRule", "pagetide"]["metadata"]["labels"]["release"] == "prom"
    for component in ("operator", "gateway"):
        monitor = found["ServiceMonitor", f"pagetide-{component}"]["spec"]
        service = found["Service", f"pagetide-{component}"]
        assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_each_can_be_left_out():
    off = [f"--set=monitoring.{part}.enabled=false" for part in ("dashboards", "rules", "serviceMonitors")]
    kinds = {kind for kind, _ in rendered(MONITORING, *off)}
    assert not kinds & {"ConfigMap", "PrometheusRule", "ServiceMonitor"}
