"""Faults of the layout that show only in a fresh interpreter."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ["operator", "server", "kernels"]
PACKAGES = [
    ROOT / package
    for package in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
]

# Importing any module of these packages must not load torch; of the server only the parts of its API process.
TORCH_FREE = [
    "pagetide_spec",
    "pagetide_http",
    "pagetide_cli",
    "pagetide_gateway",
    "pagetide_operator",
    "pagetide_server.api",
    "pagetide_server.bench",
]

WALK = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
names = [m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
heavy = sorted({"torch", "triton", "transformers"} & set(sys.modules))
sys.exit(f"{sys.argv[1]} imports {heavy}" if heavy else 0)
"""


def python(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(ROOT / folder) for folder in FOLDERS)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("folder", [".", *FOLDERS, "operator/pagetide_operator", "tests", "tests/operator"])
def test_the_standard_library_is_not_shadowed(folder):
    code = "import collections, operator; print(operator.itemgetter(0)([7]), operator.__file__)"
    done = python("-c", code, cwd=ROOT / folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("7 ")
    assert str(ROOT) not in done.stdout


def test_folders_that_are_no_packages_have_no_init():
    folders = [ROOT / folder for folder in FOLDERS] + [p for p in (ROOT / "tests").rglob("*") if p.is_dir()]
    assert [p for p in [*folders, ROOT / "tests"] if (p / "__init__.py").exists()] == []


@pytest.mark.parametrize("package", TORCH_FREE)
def test_no_torch_is_loaded_by(package):
    done = python("-c", WALK, package)
    assert done.returncode == 0, done.stderr


def test_every_package_states_its_charge():
    inits = [p for folder in FOLDERS for p in (ROOT / folder).rglob("__init__.py")]
    assert len(inits) >= 6
    docstrings = {p: ast.get_docstring(ast.parse(p.read_text())) or "" for p in inits}
    assert [p for p, text in docstrings.items() if not text] == []
    assert [p for p, text in docstrings.items() if "Does not belong here:" not in text] == []


def test_packages_announce_their_types():
    assert [p for p in PACKAGES if not (p / "py.typed").is_file()] == []


@pytest.mark.parametrize("command", ["up", "gateway"])
def test_a_command_explains_itself(command):
    done = python("-m", "pagetide_cli.main", command, "--help")
    assert done.returncode == 0, done.stderr
    assert f"pagetide {command}" in done.stdout
