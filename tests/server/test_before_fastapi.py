"""Variables that OpenTelemetry refuses when it is imported, and FastAPI with it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = (
    "{before}; import os; from pagetide_server.before_fastapi import VARIABLE, prepare_environment;"
    "print(*prepare_environment(), sep='|'); print(os.environ.get(VARIABLE));"
    "import opentelemetry.propagate"
)
STANDARD = "tracecontext,baggage"


@pytest.fixture
def broken_propagator(tmp_path):
    """A folder with a distribution whose propagator `broken` cannot be imported."""
    pytest.importorskip("opentelemetry.propagate")
    distribution = tmp_path / "broken-1.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (distribution / "entry_points.txt").write_text("[opentelemetry_propagator]\nbroken = no_such_module:Propagator\n")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("given", "hint", "left"),
    [
        pytest.param("", "", "", id="not set"),
        pytest.param("tracecontext", "", "tracecontext", id="one that is there"),
        pytest.param("b3", "'b3': Propagator b3 not found. It is either misspelled or not installed; ", STANDARD,
                     id="one that is not there"),
        pytest.param("broken", "'broken': No module named 'no_such_module'; ", STANDARD, id="one that is broken"),
    ],
)  # fmt: skip
def test_a_propagator_that_cannot_be_had_is_replaced(broken_propagator, given, hint, left):
    path = os.pathsep.join([broken_propagator, os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "OTEL_PROPAGATORS": given, "PYTHONPATH": path}
    command = [sys.executable, "-c", CODE.format(before="pass")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=env)
    said = f"OTEL_PROPAGATORS: {hint}{STANDARD} are used instead" if hint else ""
    assert done.stdout == f"{said}\n{left}\n"


def test_without_opentelemetry_nothing_is_said():
    env = {**os.environ, "OTEL_PROPAGATORS": "b3"}
    command = [sys.executable, "-c", CODE.format(before="import sys; sys.modules['opentelemetry'] = None")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.stdout == "\nb3\n"
