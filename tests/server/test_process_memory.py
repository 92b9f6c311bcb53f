"""What was freed is kept for the next step, or goes back to the system, as it is asked for."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from pagetide_server.process_memory import frozen_heap, use_huge_pages

BEGIN = """
import ctypes, pathlib, resource
from pagetide_server.process_memory import keep_freed, return_freed
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
# PR_SET_THP_DISABLE: pages of 4 KiB are counted, whatever the system's rule for huge ones is.
libc.prctl(41, 1, 0, 0, 0)
def take(size):
    piece = ctypes.c_void_p(libc.malloc(size))
    ctypes.memset(piece, 1, size)
    return piece
def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096 // 2**20
"""
# Small pieces, and one that stays at the end of the heap: without help the C library keeps them all.
RETURN = """
pieces = [take(1000) for _ in range(100_000)]
last = take(1000)
for piece in pieces:
    libc.free(piece)
before = resident()
return_freed()
print(before - resident())
"""
# A step's large tensor, taken and freed again and again: thousands of pages that must be cleared each time.
KEEP = """
KEPT
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    libc.free(take(64 << 20))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def said_by(script: str) -> int:
    done = subprocess.run([sys.executable, "-c", BEGIN + script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


linux = pytest.mark.skipif(sys.platform != "linux", reason="speaks to glibc")


@linux
def test_freed_memory_is_returned() -> None:
    assert said_by(RETURN) > 80


@linux
def test_freed_memory_is_kept() -> None:
    assert said_by(KEEP.replace("KEPT", "keep_freed()")) < 1000 < said_by(KEEP.replace("KEPT", ""))


@pytest.mark.parametrize(
    ("stated", "found"),
    [pytest.param(None, "1", id="on"), pytest.param("0", "0", id="what the user set stays")],
)
def test_huge_pages(stated: str | None, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {} if stated is None else {"THP_MEM_ALLOC_ENABLE": stated})
    use_huge_pages()
    assert os.environ["THP_MEM_ALLOC_ENABLE"] == found


@pytest.fixture
def thawed() -> Iterator[None]:
    """Nothing is frozen at first, whatever ran in this process before: a server freezes what is there, for good."""
    gc.unfreeze()
    yield
    gc.unfreeze()


class Knot:
    """Refers to itself, so that only the garbage collector frees it."""

    def __init__(self) -> None:
        self.own = self


def test_a_frozen_heap_is_not_walked_and_thaws_again(thawed: None) -> None:
    knot = Knot()
    before = weakref.ref(knot)
    with contextlib.suppress(KeyError), frozen_heap():
        del knot  # not sooner: until then it must not die
        within = weakref.ref(Knot())
        gc.collect()
        seen = within(), before()
        raise KeyError
    assert seen[0] is None
    assert seen[1] is not None
    del seen
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert before() is None


def test_what_the_user_froze_stays_frozen(thawed: None) -> None:
    own = Knot()
    gc.freeze()
    later = Knot()
    with frozen_heap():
        pass
    # The count of what is frozen would not do: every such object that dies, whoever had it, lowers it.
    assert not any(each is own for each in gc.get_objects())
    assert any(each is later for each in gc.get_objects()), "nothing more is left frozen"
