"""The documentation names what the code has."""

import re
from pathlib import Path

from pagetide_operator import failures
from pagetide_operator.telemetry import Telemetry
from pagetide_spec.names import MAX_SERVICE_NAME_LENGTH

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/operator.md").read_text()


def test_every_reason_of_ready_is_explained():
    source = (ROOT / "operator/pagetide_operator/status.py").read_text()
    source += (ROOT / "operator/pagetide_operator/reconcile.py").read_text()
    reasons = set(re.findall(r'(?:Verdict\("Ready", \w+, |Failure\()"(\w+)"', source)) | set(failures.REASONS)
    reasons |= {"InvalidSpec", "InvalidName"}
    explained = {r for row in re.findall(r"^\| ([A-Z][\w, ]+) \|", TEXT, re.MULTILINE) for r in row.split(", ")}
    assert len(reasons) > 10
    assert reasons == explained


def test_limits_and_metrics_are_as_told():
    assert f"at most {MAX_SERVICE_NAME_LENGTH} characters" in TEXT
    families = {f.name for f in Telemetry().registry.collect()}
    for name in ("reconciles", "queue_length", "relist_corrections", "leader"):
        assert f"pagetide_operator_{name}" in families
        assert name in TEXT
