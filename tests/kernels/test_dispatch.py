"""Choosing an implementation: every outcome is one clear line."""

from __future__ import annotations

import sys
import types
import unittest.mock
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pagetide_kernels import dispatch
from pagetide_kernels.cpu import attention as cpu_attention
from pagetide_kernels.cpu import build

CPU = torch.device("cpu")


@pytest.fixture
def anew() -> Iterator[None]:
    """The choice is made again, by what the test sets, and once more behind it."""
    caches = (dispatch._choose, build.library, cpu_attention._function)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def test_the_choice_can_be_overridden_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dispatch.VARIABLE, "torch")
    assert dispatch.choose(CPU) == dispatch.Choice("torch", "PAGETIDE_KERNELS asks for it")


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        pytest.param({"PAGETIDE_KERNELS": "tritn"}, "'tritn': must be one of auto, triton, cpp, torch", id="misspelt"),
        pytest.param({"PAGETIDE_KERNELS": "triton", "TRITON_INTERPRET": "0"}, "TRITON_INTERPRET=1", id="Triton"),
        pytest.param({"PAGETIDE_KERNELS": "cpp", "CXX": "no-such-c++"}, "no-such-c++", id="no compiler"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    anew: None, empty_cache: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], problem: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(dispatch.KernelChoiceError, match=problem) as raised:
        dispatch.choose(CPU)
    assert "\n" not in str(raised.value)


def test_triton_is_refused_where_it_is_not_installed(anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)  # as if it were not
    monkeypatch.setenv(dispatch.VARIABLE, "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(dispatch.KernelChoiceError, match="'triton': the package triton is not installed; pip install"):
        dispatch.choose(CPU)


GPU = torch.device("cuda")


@pytest.mark.parametrize(
    ("wanted", "problem", "name", "reason"),
    [
        pytest.param("auto", None, "triton", "the fastest", id="Triton works"),
        pytest.param("auto", "Failed to find C compiler", "torch", "C compiler; torch ops are", id="it does not"),
        pytest.param("torch", None, "torch", "asks for it", id="torch is asked for"),
    ],
)
def test_a_gpu_has_triton_where_that_works(
    anew: None, monkeypatch: pytest.MonkeyPatch, wanted: str, problem: str | None, name: str, reason: str
) -> None:
    monkeypatch.setenv(dispatch.VARIABLE, wanted)
    monkeypatch.setattr(dispatch, "_problem_of_triton", lambda: problem)
    choice = dispatch.choose(GPU)
    assert choice.name == name
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("hip", "capability", "name"),
    [
        pytest.param(None, (7, 5), "torch", id="Turing is too old"),
        pytest.param(None, (8, 0), "triton", id="Ampere"),
        pytest.param("7.0", (9, 4), "triton", id="AMD counts otherwise"),
    ],
)
def test_the_oldest_gpu(
    anew: None, monkeypatch: pytest.MonkeyPatch, hip: str | None, capability: tuple[int, int], name: str
) -> None:
    pytest.importorskip("triton")
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    monkeypatch.setattr("triton.runtime.driver", types.SimpleNamespace(active=unittest.mock.Mock()))
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    choice = dispatch.choose(GPU)
    assert choice.name == name
    assert ("8.0, and this GPU has 7.5" in choice.reason) == (name == "torch")


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton works here")
def test_triton_that_does_not_work_is_told_in_one_line(anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv(dispatch.VARIABLE, "triton")
    with pytest.raises(dispatch.KernelChoiceError, match=r"Triton does not work here: .*driver") as raised:
        dispatch.choose(GPU)
    assert "\n" not in str(raised.value)


def test_a_device_that_nothing_runs_on_is_named() -> None:
    with pytest.raises(ValueError, match="meta"):
        dispatch.choose(torch.device("meta"))


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        pytest.param({"CXX": "no-such-c++"}, "not there: 'no-such-c++'", id="the named compiler is missing"),
        pytest.param({"CXX": "", "PATH": "/nowhere"}, "install g", id="no compiler"),
        pytest.param({"CXX": "g++ '"}, "no command", id="a quotation without an end"),
        pytest.param({"CXX": "false"}, "false failed", id="a compiler that fails"),
        pytest.param({"CXX": "true"}, "true made no library", id="a compiler that makes nothing"),
        pytest.param({"PAGETIDE_CACHE": "/dev/null/x"}, "set PAGETIDE_CACHE", id="no place to keep it"),
    ],
)
def test_torch_stands_in_where_nothing_can_be_built(
    anew: None, empty_cache: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], reason: str
) -> None:
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    choice = dispatch.choose(CPU)
    assert choice.name == "torch"
    assert reason in choice.reason
    assert not list(empty_cache.glob("unfinished*"))
