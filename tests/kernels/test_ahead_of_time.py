"""Every Triton kernel compiles for the GPUs that are supported, none at hand, and spills no register."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("triton")

KERNELS = Path(__file__).parents[2] / "kernels" / "pagetide_kernels" / "gpu"
# Bytes of shared memory that a program may take. What is compiled for sm_80 also runs on the smaller sm_86 and sm_89.
SHARED = {"sm_80": 99 * 1024, "sm_90": 227 * 1024, "gfx942": 64 * 1024}


@pytest.fixture(scope="module")
def compiling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[subprocess.Popen[bytes], Path]]]:
    """A compiler for each target, all at work at once, and where each writes what it tells."""
    # Processes of their own: here, kernels are defined for the interpreter.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_DEFAULT_FP_FUSION": "1"}
    folder, started = tmp_path_factory.mktemp("compiled"), {}
    for target in SHARED:
        command = [sys.executable, "-m", "pagetide_kernels.gpu.ahead_of_time", target]
        with (folder / target).open("wb") as out, (folder / f"{target}.err").open("wb") as err:
            started[target] = subprocess.Popen(command, env=environment, stdout=out, stderr=err), folder / target
    yield started
    for process, _ in started.values():
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("target", SHARED)
def test_compiles_without_spilling(target: str, compiling: dict[str, tuple[subprocess.Popen[bytes], Path]]) -> None:
    process, written_to = compiling[target]
    assert process.wait(280) == 0, written_to.with_name(f"{target}.err").read_text()[-2000:]
    told = [json.loads(line) for line in written_to.read_text().splitlines()]
    written = {
        name for path in KERNELS.glob("*.py") for name in re.findall(r"^def (_\w+_kernel)\(", path.read_text(), re.M)
    }
    assert {t["function"] for t in told} == written
    assert [t["kernel"] for t in told if t["stack"]] == []
    assert [t["kernel"] for t in told if t["shared"] > SHARED[target]] == []
    if target != "gfx942":
        # A head has fewer bytes than a warp would read so.
        narrow = [t["kernel"] for t in told if not t["wide_loads"]]
        assert narrow == ["norm of heads"]
