"""Compile the C++ ops once a machine, and keep them.

What is built lies under $PAGETIDE_CACHE/kernels (default ~/.cache/pagetide), named by sources, flags and compiler, and
by its size: a part of it, such as a copy that was interrupted, is not taken for it. A lock lets one process compile
while others wait; the library appears by one rename when it is whole and on the disk.

An image has them built ahead (`prebuilt.py`). The library is plain C behind ctypes: no header of torch is read, so that
it builds in seconds and fits every version.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

log = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
# Where an image keeps what `prebuilt.py` made.
PREBUILT = FOLDER / "prebuilt_libraries"
# No -ffast-math: NaN and infinity must stay what they are, and it would change how the whole process rounds.
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC", "-shared", "-Wno-psabi")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mprefer-vector-width=512")
# By what torch found this processor to be capable of; ATEN_CPU_CAPABILITY makes it claim less.
INSTRUCTION_SETS = {"AVX2": _AVX2, "AVX512": (*_AVX2, *_AVX512)}
# Sums of products of 8 bits, for processors that say that they have them: (as /proc/cpuinfo writes it, flag).
DOT_PRODUCTS = {"AVX2": ("avx_vnni", "-mavxvnni"), "AVX512": ("avx512_vnni", "-mavx512vnni")}
_DOT_FLAGS = {flag for _, flag in DOT_PRODUCTS.values()}
# How the instructions begin that they allow, which an assembler older than its compiler names.
_DOT_INSTRUCTION = "vpdp"
X86 = ("x86_64", "amd64")
# What the ends of the functions' names call the types that they take.
DTYPE_NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
COMPILERS = ("c++", "g++", "clang++")
# It takes ten seconds on an idle core.
COMPILE_TIMEOUT_S = 120.0
LOCK_TIMEOUT_S = 150.0
_POLL_S = 0.1


class BuildError(Exception):
    """The ops are not available on this machine; the text is one line that says why and what would help."""


@functools.cache
def library() -> ctypes.CDLL:
    """`load`, once a process.

    Raises:
        BuildError: as `load`.
    """
    return load()


def load() -> ctypes.CDLL:
    """The library of this machine: built ahead, kept from before, or compiled now.

    Raises:
        BuildError: no compiler, or it failed, or the folder cannot be written.
    """
    flags = (*FLAGS, *instruction_flags())
    path = kept(prebuilt_path(flags)) or _built(flags)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:  # kept in a folder that systems with other libraries share, or mounted noexec
        problem = f"{path} cannot be loaded ({_line(error)}); set PAGETIDE_CACHE to a folder of this system's own"
        raise BuildError(problem) from error


def prebuilt_path(flags: tuple[str, ...]) -> Path:
    """What a library that was built ahead from these sources was compiled to, if it was."""
    return PREBUILT / f"ops-{key([], flags)}.so"


def _built(flags: tuple[str, ...]) -> Path:
    """The library that was compiled on this machine, now if it was not before."""
    compiler = find_compiler()
    folder = cache_folder()
    path = folder / f"ops-{key(compiler, flags)}.so"
    try:
        if found := kept(path):
            return found
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_suffix(".lock")):
            if found := kept(path):
                return found
            made = compile_library(compiler, flags, path)
    except OSError as error:
        problem = f"they cannot be kept in {folder} ({_line(error)}); set PAGETIDE_CACHE to a folder with room"
        raise BuildError(problem) from error
    if made.missing:
        log.warning("the C++ ops are slower than they could be: built without %s", made.missing)
    return made.path


def kept(path: Path) -> Path | None:
    """What was compiled to `path`, which got its size into its name; a part of it may load, and kill the process."""
    named = path.parent.glob(f"{path.stem}.*.so")
    return next((found for found in named if found.suffixes[0] == f".{found.stat().st_size}"), None)


def _line(error: OSError) -> str:
    return " ".join(str(error).split())


def cache_folder() -> Path:
    """Where libraries are kept.

    Raises:
        BuildError: no folder is named, and the user has no home.
    """
    try:
        named = os.environ.get("PAGETIDE_CACHE")
        return Path(named or Path.home() / ".cache" / "pagetide") / "kernels"
    except RuntimeError as error:
        raise BuildError("this user has no home folder to keep them in; set PAGETIDE_CACHE to a folder") from error


def find_compiler() -> list[str]:
    """The command of a C++ compiler: $CXX, which may carry arguments, or the first one found.

    Raises:
        BuildError: there is none.
    """
    if named := os.environ.get("CXX"):
        try:
            command = shlex.split(named)
        except ValueError as error:  # a quotation without an end
            raise BuildError(f"CXX is no command: {named!r} ({error})") from error
        if command and shutil.which(command[0]):
            return command
        raise BuildError(f"the compiler that CXX names is not there: {named!r}")
    for name in COMPILERS:
        if found := shutil.which(name):
            return [found]
    raise BuildError("no C++ compiler; install g++ for faster ops")


def instruction_flags() -> tuple[str, ...]:
    """What lets the compiler use this processor's vectors; others than x86 have theirs by default."""
    if platform.machine().lower() not in X86:
        return ()
    capability = torch.backends.cpu.get_cpu_capability()
    flags = INSTRUCTION_SETS.get(capability, ())
    # A capability that the user lowered is meant as the lowest there is.
    if flags and "ATEN_CPU_CAPABILITY" not in os.environ:
        name, flag = DOT_PRODUCTS[capability]
        flags += (flag,) if name in _processor_flags() else ()
    return flags


def _processor_flags() -> set[str]:
    """Instruction sets of the first processor, as Linux names them; none where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return set()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


def sources() -> list[Path]:
    """The files that are compiled; headers are left out."""
    return sorted(FOLDER.glob("*.cpp"))


def key(compiler: list[str], flags: tuple[str, ...]) -> str:
    """What distinguishes a library from others: all that goes into it."""
    parts = (*compiler, *flags, platform.machine())
    texts = [path.read_bytes() for path in (*sources(), *sorted(FOLDER.glob("*.h")))]
    return hashlib.sha256(b"\0".join(["\0".join(parts).encode(), *texts])).hexdigest()[:24]


class Library(NamedTuple):
    """What was compiled; `missing` says which flags the compiler does not know, "" where it knows all."""

    path: Path
    missing: str


def compile_library(compiler: list[str], flags: tuple[str, ...], path: Path) -> Library:
    """Compile to `path` with its size in the name, where it appears when it is whole and on the disk.

    Without those of DOT_PRODUCTS that the compiler does not know: the processor may have come after it.

    Raises:
        BuildError: the compiler failed, or took too long.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="unfinished-") as folder:
        made = Path(folder) / path.name
        task = [*map(str, sources()), "-o", str(made)]
        result = _run([*compiler, *flags, *task])
        dots = [flag for flag in flags if flag in _DOT_FLAGS]
        unknown = dots if result.returncode and any(s in result.stderr for s in (*dots, _DOT_INSTRUCTION)) else []
        if unknown:
            result = _run([*compiler, *(flag for flag in flags if flag not in unknown), *task])
        if result.returncode:
            lines = [line for line in result.stderr.splitlines() if "error" in line] or result.stderr.splitlines()
            raise BuildError(f"{compiler[0]} failed: {lines[0].strip()[:300] if lines else result.returncode}")
        if not made.exists():
            raise BuildError(f"{compiler[0]} made no library")
        with made.open("rb") as file:
            os.fsync(file.fileno())
        missing = f"{' '.join(unknown)}, which {compiler[0]} does not know" if unknown else ""
        return Library(made.rename(path.with_suffix(f".{made.stat().st_size}.so")), missing)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} took longer than {COMPILE_TIMEOUT_S:.0f} s") from error
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {_line(error)}") from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of one library; the system frees it when a process exits, for any reason."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    problem = f"another process has held {path} for {LOCK_TIMEOUT_S:.0f} s"
                    raise BuildError(f"{problem}; end it or remove the file") from error
                time.sleep(_POLL_S)
        yield
