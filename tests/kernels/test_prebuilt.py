"""The C++ ops built ahead, as an image has them."""

import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from pagetide_kernels.cpu import build, prebuilt


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing was built before, ahead or here."""
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setenv("PAGETIDE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "prebuilt"


def test_what_was_built_ahead_is_taken_without_a_compiler(
    folder: Path, quick_compiler: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prebuilt.build_all([build.instruction_flags()], print)
    monkeypatch.setattr(build, "compile_library", None)
    monkeypatch.setattr(build, "find_compiler", list)
    library = build.load()
    assert Path(library._name).parent == folder
    assert f"{Path(library._name).name}: " in capsys.readouterr().out
    prebuilt.build_all([build.instruction_flags()], print)  # it is there: nothing is compiled again


def test_a_library_without_what_its_processor_could_do_is_told(
    folder: Path, old_compiler: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    old_compiler("-mavxvnni")
    prebuilt.build_all([("-mavx2", "-mavxvnni")], print)
    assert ".so: -mavx2 -mavxvnni, but built without -mavxvnni, which " in capsys.readouterr().out


def test_other_sources_are_not_what_was_built(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    flags = (*build.FLAGS, *build.instruction_flags())
    before = build.prebuilt_path(flags)
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "other.cpp").write_text("int x;")
    monkeypatch.setattr(build, "FOLDER", tmp_path / "sources")
    assert build.prebuilt_path(flags) != before


def test_every_kind_of_processor_has_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    kinds = prebuilt.kinds()
    assert len(set(kinds)) == len(kinds) == 5
    for capability in ("DEFAULT", *build.INSTRUCTION_SETS):
        for processor in (set(), {"avx_vnni", "avx512_vnni"}):
            monkeypatch.setattr(build, "_processor_flags", lambda processor=processor: processor)
            monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda capability=capability: capability)
            assert build.instruction_flags() in kinds
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert prebuilt.kinds() == [()]


def test_without_a_compiler_one_line_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-c++")
    monkeypatch.setattr("sys.argv", ["prebuilt"])
    assert prebuilt.main() == 1
    assert capsys.readouterr().err.count("\n") == 1
