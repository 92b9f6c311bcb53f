"""The host keeps no copy of weights that go to a GPU: until each moves, it is the mapped file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagetide_server.model import weights
from pagetide_server.model.loader import load
from pagetide_spec.config import EngineConfig

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")


def mapped_ranges(path: Path) -> list[tuple[int, int]]:
    """Where the file lies in this process's memory."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    ends = [parts[0].split("-") for parts in lines if parts[-1] == str(path)]
    return [(int(first, 16), int(end, 16)) for first, end in ends]


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2"])
@pytest.mark.parametrize(
    ("dtype", "mapped"),
    [
        pytest.param("float32", True, id="as they are stored"),
        pytest.param("bfloat16", False, id="another type is made in host memory"),
    ],
)
def test_weights_are_the_mapped_file_until_they_move(
    kind: str, dtype: str, mapped: bool, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_model(kind)
    found: dict[str, bool] = {}
    moved = weights._moved

    def watched(network: Any, *others: Any) -> Any:
        ranges = mapped_ranges((folder / "model.safetensors").resolve())
        for name, weight in network.named_parameters():
            found[name] = any(first <= weight.data_ptr() < end for first, end in ranges)
        return moved(network, *others)

    monkeypatch.setattr(weights, "_moved", watched)
    load(EngineConfig(model=str(folder), dtype=dtype))
    assert len(found) > 20
    assert set(found.values()) == {mapped}
