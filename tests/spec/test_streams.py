"""A standard stream that is closed or cannot be written keeps no program from its work."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from pagetide_spec.streams import INTERRUPTED, READER_LEFT, discard, open_streams, write_line


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


@pytest.fixture
def full_disk():
    with open("/dev/full", "w", encoding="utf-8") as stream:
        yield stream


@pytest.fixture
def left_reader():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        yield stream


@pytest.mark.parametrize(
    ("stream", "number"),
    [
        pytest.param("full_disk", errno.ENOSPC, id="a full disk"),
        pytest.param("left_reader", errno.EPIPE, id="a reader that has left"),
    ],
)
def test_a_stream_that_fails_says_so_once_and_leaks_nothing(request, stream, number):
    stream = request.getfixturevalue(stream)
    before = descriptors()
    error = write_line("the first", stream)
    assert error is not None
    assert error.errno == number
    assert write_line("the second", stream) is None
    stream.flush()
    assert descriptors() == before


def test_a_line_is_written_at_once(tmp_path):
    with (tmp_path / "out").open("w") as stream:
        assert write_line("one", stream) is None
        assert (tmp_path / "out").read_text() == "one\n"


def test_a_discarded_stream_takes_what_was_buffered_with_it(full_disk):
    full_disk.write("buffered")
    discard(full_disk)
    full_disk.flush()


def test_a_descriptor_closed_beneath_its_stream_is_open_again(tmp_path):
    stream = (tmp_path / "out").open("w")
    os.close(stream.fileno())
    error = write_line("lost", stream)
    assert error is not None
    assert error.errno == errno.EBADF
    stream.close()


def test_only_closed_streams_are_opened(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(sys, "stdout", None)
    kept = sys.stderr
    open_streams()
    with sys.stdin as stdin, sys.stdout as stdout:
        assert stdin.read() == ""
        assert stdout.write("nowhere") == 7
        assert sys.stderr is kept


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        pytest.param("return 3", 3, "", id="a code"),
        pytest.param("sys.exit(4)", 4, "", id="an exit"),
        pytest.param("raise KeyboardInterrupt", INTERRUPTED, "", id="an interrupt"),
        pytest.param("raise BrokenPipeError", READER_LEFT, "", id="a reader that has left"),
        pytest.param(
            "raise OSError(errno.ENOSPC, 'No space')", 1, "demo: the output cannot be written: No space\n",
            id="a full disk",
        ),
        pytest.param(
            "raise OSError(errno.EDQUOT, 'No quota')", 1, "demo: the output cannot be written: No quota\n",
            id="a quota",
        ),
        pytest.param(
            "raise OSError(errno.ENOSPC, 'No space', '/cache/x')", 1, "demo: '/cache/x' cannot be written: No space\n",
            id="a full disk under a file",
        ),
    ],
)  # fmt: skip
def test_how_a_program_ends(end, code, said):
    text = (
        f"import errno, sys\ndef main():\n print('printed')\n {end}\n"
        "from pagetide_spec.streams import run_program\nsys.exit(run_program(main, 'demo'))"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (code, said)
