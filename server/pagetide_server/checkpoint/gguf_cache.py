"""Keep a GGUF file's content as a plain model folder, converted once.

The folder lies under `cache_folder()`/gguf, named by the file's content. A lock lets one process convert while others
wait; the folder appears by one rename when it is whole. The conversion runs in a child process, because it needs torch
and gigabytes of memory, which neither the API process nor the engine should keep. Nothing is ever removed from the
cache; whoever needs the room may delete what no server is loading.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from pagetide_spec.errors import SettingError, UnavailableError

from .files import Progress, cache_folder

# Part of the key: raise it when the conversion writes something else.
FORMAT = 2
# How often whoever waits for another process looks how far that is.
LOOK_SECONDS = 0.2
_WINDOWS, _WINDOW_BYTES = 256, 65536


def converted(path: Path, progress: Progress) -> Path:
    """The plain folder of a GGUF file, converting it first where that was not done.

    Raises:
        SettingError: the file is no whole GGUF file, or of a model that cannot be served.
        UnavailableError: the folder cannot be written.
    """
    base = cache_folder() / "gguf"
    try:
        base.mkdir(parents=True, exist_ok=True)
        # (A stem may hold dots, so endings are appended to the name; `with_suffix` would cut it at the last dot.)
        folder = base / f"{path.stem}-{identity(path)}"
        if folder.is_dir():
            return folder
        with _locked(base / f"{folder.name}.lock", progress) as told:
            if not folder.is_dir():
                _convert(path, folder, told)
    except OSError as error:
        problem = f"its converted form cannot be kept in {base} ({error}); set PAGETIDE_CACHE to a folder with room"
        raise UnavailableError("model", str(path), problem) from error
    return folder


def identity(path: Path) -> str:
    """24 hex digits that differ for files of different content.

    Of size, time of the last change, and 256 windows spread over the file: to read all of a large one takes minutes.
    """
    stat = path.stat()
    size = stat.st_size
    digest = hashlib.sha256(f"{FORMAT} {size} {stat.st_mtime_ns}".encode())
    with path.open("rb") as file:
        for i in range(_WINDOWS):
            file.seek(max(0, size - _WINDOW_BYTES) * i // (_WINDOWS - 1))
            digest.update(file.read(_WINDOW_BYTES))
    return digest.hexdigest()[:24]


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[Progress]:
    """Hold the lock; yields what tells `progress`, and those who wait for the lock, how far the conversion is."""
    path.touch()
    with path.open("r+b", buffering=0) as file:
        _wait(file.fileno(), progress)

        def told(stage: str, fraction: float) -> None:
            os.pwrite(file.fileno(), f"{fraction:.3f}".encode(), 0)
            progress(stage, fraction)

        os.ftruncate(file.fileno(), 0)  # what a conversion that was killed had left
        yield told


def _wait(lock: int, progress: Progress) -> None:
    told = -1.0
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fraction = float(os.pread(lock, 5, 0) or 0)
            if fraction != told:
                progress("waiting for the GGUF file to be converted", fraction)
                told = fraction
        # Whoever waits for a lock hears nothing meanwhile.
        time.sleep(LOOK_SECONDS)


def _convert(path: Path, folder: Path, progress: Progress) -> None:
    # Left by a process that was killed; nobody else writes it while we hold the lock.
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        _run_child(path, unfinished, progress)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _run_child(path: Path, target: Path, progress: Progress) -> None:
    """Run the conversion.

    Raises:
        SettingError: the file is at fault.
        UnavailableError: the conversion is.
    """
    # What the child says on stderr goes into a file: a pipe that nobody reads would stop it once 64 KiB are in it.
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(
            _command(path, target), stdout=subprocess.PIPE, stderr=said, text=True, errors="replace", env=_environment()
        ) as child:
            assert child.stdout is not None
            try:
                problem = _follow(child.stdout, progress)
            except BaseException:
                child.kill()
                raise
        if problem:
            raise SettingError("model", str(path), problem)
        if child.returncode:
            last = _last_line(said) or f"exit code {child.returncode}"
            raise UnavailableError("model", str(path), f"cannot be converted: {last[:300]}")


def _command(path: Path, target: Path) -> list[str]:
    return [sys.executable, "-m", "pagetide_server.model.gguf.convert", str(path), str(target)]


def _follow(lines: Iterable[str], progress: Progress) -> str:
    """Read the child's lines `progress FRACTION` and `error TEXT` to their end; returns the error's text, or none."""
    problem = ""
    for line in lines:
        kind, _, text = line.strip().partition(" ")
        if kind == "error":
            problem = text
        elif kind == "progress":
            progress("converting the GGUF file", float(text))
    return problem


def _last_line(said: IO[bytes]) -> str:
    end = said.seek(0, os.SEEK_END)
    said.seek(max(0, end - 4096))
    lines = said.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _environment() -> dict[str, str]:
    # The child must find the same packages as we do, installed or not.
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
