"""A GPU that is there but cannot be used ends the start, and is not served around on the CPU."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from pagetide_server.model.devices import find_device
from pagetide_spec.errors import PagetideError

TOO_OLD = "The NVIDIA driver on your system is too old (found version 12060)."

CHOOSE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch says where it finds no GPU, by a build for CUDA."""

    def fail() -> None:
        raise RuntimeError(f"{TOO_OLD}\nPlease update it.")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", fail)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.version, "hip", None)
    for name in CHOOSE:
        monkeypatch.delenv(name, raising=False)


def machine(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(
    "names",
    [
        pytest.param((), id="no GPU"),
        pytest.param(("nvidiactl", "nvidia-uvm"), id="a driver without a GPU"),
        pytest.param(("kfd",), id="one of AMD, and torch for CUDA"),
    ],
)
def test_the_cpu_serves_where_torch_could_see_nothing(names: tuple[str, ...], tmp_path: Path) -> None:
    assert find_device(machine(tmp_path, *names)) == torch.device("cpu")


@pytest.mark.parametrize("hidden", ["", "-1", "-1,0", "NoDevFiles"])
def test_the_cpu_serves_where_the_gpu_is_hidden(hidden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert find_device(machine(tmp_path, "nvidia0")) == torch.device("cpu")


def test_a_gpu_that_torch_cannot_use_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(PagetideError, match=r"nvidia0.*too old.*Please update it.; update its driver") as raised:
        find_device(machine(tmp_path, "nvidia0", "nvidia1"))
    assert "\n" not in str(raised.value)


def test_torch_for_amd_looks_for_their_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(PagetideError, match="kfd"):
        find_device(machine(tmp_path, "kfd"))


@pytest.mark.parametrize("variable", CHOOSE)
def test_a_gpu_of_amd_can_be_hidden_by_their_variables(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setenv(variable, "")
    assert find_device(machine(tmp_path, "kfd")) == torch.device("cpu")


@pytest.mark.parametrize("variable", CHOOSE[1:])
def test_a_gpu_of_nvidia_can_not(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "")
    with pytest.raises(PagetideError, match="nvidia0"):
        find_device(machine(tmp_path, "nvidia0"))


def test_a_torch_for_the_cpu_says_that_it_leaves_the_gpu_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    caplog.set_level(logging.WARNING)
    assert find_device(machine(tmp_path, "nvidia0")) == torch.device("cpu")
    assert "built for the CPU only" in caplog.text
