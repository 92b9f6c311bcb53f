"""The documentation names what the code has."""

import ast
import re
from pathlib import Path

from pagetide_operator.telemetry import Telemetry
from pagetide_operator.verdicts import failures
from pagetide_spec.names import MAX_SERVICE_NAME_LENGTH

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/operator.md").read_text()


def reasons_of(path):
    """Reasons of Ready and Progressing that a file of the operator names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        words = [getattr(a, "value", None) for a in node.args]
        name = getattr(node.func, "id", "")
        if name == "Failure" and isinstance(words[0], str):
            yield words[0]
        if name == "Verdict" and words[0] in ("Ready", "Progressing") and isinstance(words[2], str):
            yield words[2]


def test_every_reason_has_its_heading_and_no_other_thing_has():
    files = (ROOT / "operator/pagetide_operator").rglob("*.py")
    reasons = {r for path in files for r in reasons_of(path)} | set(failures.REASONS)
    reasons |= {"InvalidSpec", "InvalidName", "QuotaExceeded", "FailedCreate", "Unschedulable", "VolumePending"}
    headings = re.findall(r"^## (.+)$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    assert len(reasons) > 20
    assert sorted(headings) == sorted(reasons)


def test_limits_and_metrics_are_as_told():
    assert f"at most {MAX_SERVICE_NAME_LENGTH} characters" in TEXT
    families = {f.name for f in Telemetry().registry.collect()}
    for name in ("reconciles", "queue_length", "relist_corrections", "leader"):
        assert f"pagetide_operator_{name}" in families
        assert name in TEXT
