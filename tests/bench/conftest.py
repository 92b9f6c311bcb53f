"""Makes bench/peers importable without bench/ on the path: it holds scripts that other modules are named like."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "bench" / "peers"

if "peers" not in sys.modules:
    spec = importlib.util.spec_from_file_location(
        "peers", PACKAGE / "__init__.py", submodule_search_locations=[str(PACKAGE)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["peers"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
