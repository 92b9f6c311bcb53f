"""What the benches of ops and of the machine say to those who call them wrongly: one clear line, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def run(script: str, *arguments: str, missing: str = "nothing") -> subprocess.CompletedProcess[str]:
    """Run a bench as if the package `missing` were not installed."""
    code = "import runpy, sys; sys.modules[sys.argv.pop(1)] = None; sys.path.insert(0, sys.argv.pop(1)); "
    code += "del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, missing, str(BENCH), str(BENCH / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_trial_on_a_cpu_says_what_to_install() -> None:
    done = run("kernels.py", "--try", missing="triton")
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install triton" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("script", "arguments", "problem"),
    [
        pytest.param("cpu_floor.py", ["/nowhere"], "/nowhere/config.json cannot be read", id="no model's folder"),
        pytest.param("cpu_floor.py", [], "required: MODEL", id="no model"),
        pytest.param("kernels_cpu.py", ["2", "int4"], "'int4' (choose from", id="a type that there is not"),
        pytest.param("gpu_throughput.py", ["0", "--small"], "must be at least 1, not 0", id="no request"),
        pytest.param("kernels_cpu.py", ["two"], "invalid int value: 'two'", id="no number of threads"),
    ],
)
def test_a_wrong_argument_is_one_line(script: str, arguments: list[str], problem: str) -> None:
    done = run(script, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    *usage, last = done.stderr.splitlines()
    assert problem in last
    assert usage[0].startswith("usage:")


@pytest.mark.parametrize("script", ["cpu_floor.py", "kernels_cpu.py"])
def test_help_is_told(script: str) -> None:
    done = run(script, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage:" in done.stdout
