"""A file is converted once, by a child process, into a folder that its content names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pagetide_server.checkpoint import gguf_cache
from pagetide_server.checkpoint.files import resolve
from pagetide_server.checkpoint.gguf_cache import identity
from pagetide_server.plan import main as plan_main
from pagetide_spec.config import EngineConfig
from pagetide_spec.errors import PagetideError, SettingError

from .writing import Tiny, write_gguf


def test_two_processes_at_once_convert_once(tiny_model: Tiny, tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tiny_model("qwen3"), tmp_path / "m-1.5.Q4.gguf", "qwen3")
    # Left by a process that was killed.
    left = cache / f"m-1.5.Q4-{identity(path)}.unfinished"
    left.mkdir(parents=True)
    (left / "config.json").write_text("half")
    code = (
        "from pagetide_server.checkpoint.files import resolve; from pagetide_spec.config import EngineConfig\n"
        f"print(resolve(EngineConfig(model={str(path)!r}), lambda stage, part: print(stage)))"
    )
    env = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env) for _ in "ab"]
    said = [child.communicate(timeout=120)[0].splitlines() for child in both]
    assert [child.returncode for child in both] == [0, 0]
    folder = Path(said[0][-1])
    assert folder == Path(said[1][-1])
    assert sorted(any("converting" in line for line in lines) for lines in said) == [False, True]
    assert {p.name for p in cache.iterdir()} == {folder.name, f"{folder.name}.lock"}
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen3"
    # From now on nothing is converted, and nobody waits.
    stages: list[str] = []
    assert resolve(EngineConfig(model=str(path)), lambda stage, part: stages.append(stage)) == folder
    assert stages == []


@pytest.mark.parametrize(
    "place", [pytest.param(1 << 30, id="within a window"), pytest.param((1 << 30) + 100_000, id="between two windows")]
)
def test_other_content_has_another_identity(place: int, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    # Sparse, so that it takes no room; its windows lie 8 MiB apart.
    size = 255 * (8 << 20) + 65536
    with path.open("wb") as file:
        file.truncate(size)
    before = identity(path)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"other")
    assert identity(path) != before


def run_instead(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let another program do the conversion."""
    monkeypatch.setattr(gguf_cache, "_command", lambda path, target: [sys.executable, "-c", program])


def test_a_child_that_says_much_is_listened_to(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(
        monkeypatch,
        "import sys; print('Some library greets you'); print('progress 0.5', flush=True)\n"
        "sys.stderr.write('a warning\\n' * 20_000); sys.stderr.flush(); print('progress 1.0')",
    )
    (path := tmp_path / "m.gguf").write_bytes(b"any")
    told: list[float] = []
    assert resolve(EngineConfig(model=str(path)), lambda stage, part: told.append(part)).is_dir()
    assert told == [0.5, 1.0]


def test_who_waits_for_another_process_is_told_how_far_that_is(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The converting child stops at each fraction until the waiting thread has heard of it."""
    pipe = tmp_path / "go"
    os.mkfifo(pipe)
    run_instead(
        monkeypatch,
        "import signal; signal.alarm(30)\n"
        f"for part in (0.25, 0.5):\n print(f'progress {{part}}', flush=True)\n open({str(pipe)!r}).read()",
    )
    (path := tmp_path / "m.gguf").write_bytes(b"any")
    config, heard = EngineConfig(model=str(path)), []

    def hear(stage: str, part: float) -> None:
        heard.append((stage, part))
        if part:
            pipe.write_text("")

    started = threading.Event()
    with ThreadPoolExecutor() as pool:
        converting = pool.submit(resolve, config, lambda stage, part: started.set())
        assert started.wait(30)
        waiting = pool.submit(resolve, config, hear)
        assert converting.result(30) == waiting.result(30)
    assert heard == [("waiting for the GGUF file to be converted", part) for part in (0.25, 0.5)]


def test_a_child_that_fails_is_quoted(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, "import sys; sys.stderr.write('x' * 200_000 + '\\n'); raise ValueError('too odd')")
    (path := tmp_path / "m.gguf").write_bytes(b"any")
    with pytest.raises(PagetideError, match="cannot be converted: ValueError: too odd"):
        resolve(EngineConfig(model=str(path)))
    assert [p.suffix for p in cache.iterdir()] == [".lock"]


def test_a_fault_found_by_the_child_process_is_one_clear_error(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0")
    with pytest.raises(SettingError, match=r"m\.gguf': is cut short or damaged") as caught:
        resolve(EngineConfig(model=str(path)))
    assert caught.value.field == "model"
    assert [p.suffix for p in cache.iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_written_says_so(
    tiny_model: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tiny_model("qwen3"), tmp_path / "m.gguf", "qwen3")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PAGETIDE_CACHE", str(tmp_path / "file"))
    with pytest.raises(PagetideError, match="set PAGETIDE_CACHE"):
        resolve(EngineConfig(model=str(path)))


def test_plan_reads_a_file_without_converting_it(
    tiny_model: Tiny, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(tiny_model("gemma3"), tmp_path / "m.gguf", "gemma3")
    assert plan_main([str(path), "--device-memory=8GiB"]) == 0
    assert "gemma3_text, 3 layers" in capsys.readouterr().out
    assert not cache.exists()
