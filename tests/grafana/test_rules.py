"""Alert rules: checked by promtool, each tried by it, each with a section in the runbook."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from pagetide_dashboards.files import ROOT
from pagetide_dashboards.rules import ALERTS

PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason='needs promtool: put it on PATH, name it in PROMTOOL, or: eval "$(.ci/observers)"'
)
CASES = Path(__file__).parent / "rules_test.yaml"


def promtool(*arguments: str) -> str:
    done = subprocess.run([str(PROMTOOL), *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_the_rules_are_valid():
    assert "SUCCESS" in promtool("check", "rules", str(ROOT / "grafana/rules.yaml"))


@needs_promtool
def test_the_example_of_a_prometheus_is_valid_but_for_discovery(tmp_path: Path) -> None:
    """Debian's promtool has no discovery in Kubernetes; all else is checked."""
    config = yaml.safe_load((ROOT / "grafana/prometheus.yaml").read_text())
    assert [scrape.pop("kubernetes_sd_configs")[0]["role"] for scrape in config["scrape_configs"]] == ["pod", "pod"]
    config["rule_files"] = [str(ROOT / "grafana/rules.yaml")]
    path = tmp_path / "prometheus.yaml"
    path.write_text(yaml.safe_dump(config))
    assert "SUCCESS" in promtool("check", "config", str(path))


@needs_promtool
def test_each_alert_fires_for_what_it_is_meant_for():
    promtool("test", "rules", str(CASES))


def test_no_alert_is_left_untried():
    cases = [case for test in yaml.safe_load(CASES.read_text())["tests"] for case in test.get("alert_rule_test", ())]
    tried = {case["alertname"] for case in cases if case["exp_alerts"]}
    assert tried == {alert.name for alert in ALERTS}


def sections() -> dict[str, str]:
    text = (ROOT / "docs/runbook.md").read_text()
    return dict(re.findall(r"^## (Pagetide\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: a.name)
def test_the_runbook_names_the_parameter_to_turn(alert, parameters):
    advice = sections()[alert.name].partition("Fix:")[2]
    named = {path for code in re.findall(r"`([^`]+)`", advice) for path in re.findall(r"[\w.]+", code)}
    named |= {path.rpartition(".")[2] for path in named}
    assert named & parameters, "a section names a field of the resource, or a value of the chart"


@pytest.mark.parametrize("page", ["runbook", "tuning"])
def test_a_page_names_no_parameter_that_is_not_there(page, camel_names):
    text = (ROOT / f"docs/{page}.md").read_text()
    named = {name for code in re.findall(r"`([^`\n]+)`", text) for name in re.findall(r"\b[a-z]+[A-Z]\w*", code)}
    assert named - {"camelCase"} <= camel_names


def test_the_runbook_has_no_section_of_an_alert_that_is_gone():
    assert sections().keys() == {alert.name for alert in ALERTS}


def test_links_within_the_runbook_lead_somewhere():
    text = (ROOT / "docs/runbook.md").read_text()
    anchors = {name.lower() for name in sections()}
    assert set(re.findall(r"\]\(#([\w-]+)\)", text)) <= anchors
