"""Every Triton kernel compiles for the GPUs that are supported, none at hand, and spills no register."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

KERNELS = Path(__file__).parents[2] / "kernels" / "pagetide_kernels" / "gpu"
# Bytes of shared memory that a program may take. What is compiled for sm_80 also runs on the smaller sm_86 and sm_89.
SHARED = {"sm_80": 99 * 1024, "sm_90": 227 * 1024, "gfx942": 64 * 1024}


@pytest.mark.slow
@pytest.mark.parametrize("target", SHARED)
def test_compiles_without_spilling(target: str) -> None:
    # A process of its own: here, kernels are defined for the interpreter.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_DEFAULT_FP_FUSION": "1"}
    command = [sys.executable, "-m", "pagetide_kernels.gpu.ahead_of_time", target]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    told = [json.loads(line) for line in done.stdout.splitlines()]
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
