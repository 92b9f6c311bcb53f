"""`pagetide bench` against the real server with a tiny random model, both as processes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

LOAD_S = 120  # torch alone takes tens of seconds to import on a busy machine


@pytest.fixture
def served(run, tiny_model, until):
    """The address of a server."""
    flags = ["--port=0", "--host=127.0.0.1", "--kv-cache-memory-gib=0.05", "--swap-space-gib=0", "--max-num-seqs=4"]
    server = run("-m", "pagetide_cli.main", "serve", str(tiny_model("llama")), *flags)
    until(lambda: "serving " in server.text or server.process.poll() is not None, LOAD_S)
    found = re.search(r"^serving \S+ at (\S+)$", server.text, re.MULTILINE)
    assert found, server.text
    return found[1]


def measured(run, folder: Path, *flags: str) -> dict:
    file = folder / "figures.json"
    bench = run("-m", "pagetide_cli.main", "bench", *flags, f"--json={file}", "--slo=error_rate=0")
    assert bench.process.wait(60) == 0, bench.text
    return json.loads(file.read_text())


@pytest.mark.slow
def test_a_real_server_is_measured(served, run, tmp_path):
    got = measured(
        run, tmp_path, served, "--concurrency=8", "--requests=24", "--warmup=1",
        "--prefix-tokens=64", "--input-tokens=8:24", "--output-tokens=12",
    )  # fmt: skip
    assert got["requests"]["ok"] == 24
    assert got["tokens"]["output"] == 24 * 12
    assert 24 * (64 + 8) <= got["tokens"]["input"] <= 24 * (64 + 24)
    # All but the first few find the shared prefix computed.
    assert 24 * 64 * 0.5 <= got["tokens"]["prefix_cache_hits"] <= 24 * 64
    assert got["inter_token"]["count"] == pytest.approx(24 * 11)
    assert got["queue"]["count"] == 24
    # Eight at once on four places: some wait, and what they wait is part of the time to the first token.
    assert got["queue"]["max"] > 0
    assert got["queue"]["mean"] < got["ttft"]["mean"] < got["e2e"]["mean"]

    chat = measured(
        run, tmp_path, served, "--chat", "--rate=20", "--requests=6", "--input-tokens=100", "--output-tokens=4"
    )
    assert chat["requests"]["ok"] == 6
    # The words' length is measured, so that a prompt is about as long as it was meant to be.
    assert 6 * 80 <= chat["tokens"]["input"] <= 6 * 120
    assert chat["tokens"]["output"] == 24
