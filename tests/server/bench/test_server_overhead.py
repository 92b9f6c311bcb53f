"""The measurement of the server's own cost still runs, and its figures hang together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "bench" / "server_overhead.py"


def test_every_token_is_delivered_and_accounted_for(tmp_path):
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(SCRIPT), "--streams=4", "--tokens=6", "--step-ms=5", f"--json={figures}"]
    if len(os.sched_getaffinity(0)) == 1:
        command.append("--no-pin")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    found = json.loads(figures.read_text())
    assert [found[name]["tokens"] for name in ("many", "few")] == [4 * 6, 50 * 6]
    for row in found.values():
        assert 0 < row["added_p50_ms"] <= row["added_p99_ms"]
