"""Pages, help texts and metric descriptions use the field's terms, and not the words that stood in their place."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pagetide_spec.config import EngineConfig
from pagetide_spec.metrics import GATEWAY_METRICS, OPERATOR_METRICS, SERVER_METRICS
from pagetide_spec.setting import setting_of

ROOT = Path(__file__).parents[2]

# What to write instead is the comment.
RETIRED = (
    r"batch mates",  # other requests in the batch; batch-invariant
    r"(shared|common|equal) beginnings?",  # prefixes
    r"likeliest",  # greedy, argmax, highest-probability
    r"(give|gives|gave|giving) way",  # is preempted
    r"places? in (the|a) batch",  # batch slots
    r"rooms",  # packages
    r"looks? (at|of) (a |the )?(service|replica)s?",  # reconcile, scrape, poll
    r"(run|runs|running|ran) ahead",  # async scheduling, a step in flight
    r"drawn tokens?",  # sampled tokens
    r"recorded (graphs|steps|as CUDA)",  # captured
    r"(tokens?|requests?|bytes|steps) a second",  # per second
    r"(is|are|was) told",  # is reported, described, logged
    r"tells",  # describes, reports, exports, logs
    r"anew",  # again; regenerate, recreate, restart
    r"(to|cannot) be had",  # available
    r"no HTTP",  # malformed HTTP
    r"at hand",
)
PATTERN = re.compile(r"\b(" + "|".join(RETIRED) + r")\b", re.IGNORECASE)

# docs/performance.md has figures as they were measured.
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "Makefile")] + sorted(
    path for path in (ROOT / "docs").rglob("*.md") if path.name != "performance.md"
)
COMMANDS = ("serve", "up", "operator", "gateway", "top", "bench", "plan", "simulate", "crd")


def found(text: str) -> list[str]:
    return [match[0] for match in PATTERN.finditer(" ".join(text.split()))]


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_has_no_retired_word(path):
    assert found(path.read_text("utf-8")) == []


def test_no_dashboard_or_alert_has_a_retired_word():
    paths = [*(ROOT / "grafana" / "dashboards").glob("*.json"), ROOT / "grafana" / "rules.yaml"]
    assert len(paths) > 5
    assert {path.name: found(path.read_text("utf-8")) for path in paths} == {path.name: [] for path in paths}


def test_no_description_of_a_setting_or_metric_has_a_retired_word():
    texts = [setting_of(field).help for field in dataclasses.fields(EngineConfig)]
    texts += [m.help for group in (SERVER_METRICS, GATEWAY_METRICS, OPERATOR_METRICS) for m in group.values()]
    assert [text for text in texts if found(text)] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_commands_help_has_no_retired_word(command):
    done = subprocess.run(
        [sys.executable, "-m", "pagetide_cli.main", command, "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert found(done.stdout) == []


@pytest.mark.parametrize("text", ["An answer depends on its batch mates.", "two tokens\na second", "It tells more."])
def test_retired_words_are_found(text):
    assert found(text)
