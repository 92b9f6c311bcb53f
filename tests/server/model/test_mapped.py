"""Pages of a weights file are let go of once they are read, whatever the file is called; other memory is left alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from pagetide_server.model.mapped import give_back, own_weights

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
NUMBERS = 1 << 20


@pytest.fixture(params=["model.safetensors", "blobs/4f0c"], ids=["a file of its own name", "a file of a hub's cache"])
def weight(request: pytest.FixtureRequest, tmp_path: Path) -> torch.Tensor:
    """A weight [NUMBERS] that is the mapped file; all of its pages were read."""
    path = tmp_path / request.param
    path.parent.mkdir(exist_ok=True)
    save_file({"weight": torch.arange(NUMBERS, dtype=torch.float32)}, path)
    with safe_open(path, framework="pt") as file:
        found: torch.Tensor = file.get_tensor("weight")
    assert found.sum() > 0
    return found


def resident(weight: torch.Tensor) -> int:
    """Bytes in memory of the mapping that the weight begins in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if "-" in name and not name.endswith(":"):
            low, _, high = name.partition("-")
            inside = int(low, 16) <= weight.data_ptr() < int(high, 16)
        elif inside and name == "Rss:":
            return int(values[0]) * 1024
    raise AssertionError("the weight lies in no mapping")


def test_pages_that_were_read_are_given_back(weight: torch.Tensor) -> None:
    assert resident(weight) >= weight.nbytes
    give_back(weight)
    assert resident(weight) < weight.nbytes // 8
    # And are read again where they are needed again.
    assert torch.equal(weight, torch.arange(NUMBERS, dtype=torch.float32))


def test_memory_that_is_no_file_stays() -> None:
    weight = torch.arange(NUMBERS, dtype=torch.float32)
    give_back(weight)
    assert torch.equal(weight, torch.arange(NUMBERS, dtype=torch.float32))


def test_own_weights_lie_in_no_file(weight: torch.Tensor) -> None:
    network = torch.nn.Linear(1, 1, bias=False)
    network.weight.data = weight
    own_weights(network)
    assert network.weight.data_ptr() != weight.data_ptr()
    assert resident(weight) < weight.nbytes // 8
    assert torch.equal(network.weight, torch.arange(NUMBERS, dtype=torch.float32))
