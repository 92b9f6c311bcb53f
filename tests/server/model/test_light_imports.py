"""An engine on a CPU does not hold Triton in memory, and keeps nobody from importing it later."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

LOAD = """
import sys
from pagetide_server.model.loader import load
from pagetide_spec.config import EngineConfig

load(EngineConfig(model=sys.argv[1]))
print("triton" in sys.modules)
import triton
print(triton.__name__)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton to leave out")
@pytest.mark.skipif(torch.cuda.is_available(), reason="an engine on a GPU needs it")
def test_a_cpu_engine_leaves_triton_out(tiny_model: Callable[[str], Path]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PAGETIDE_KERNELS"}
    command = [sys.executable, "-c", LOAD, str(tiny_model("llama"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.stdout.split() == ["False", "triton"], done.stderr
