"""Messages on a stream, however the stream is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagetide_server.process.frames import HEAD_BYTES, FrameSplitter, frame

MESSAGES = [b"first", b"", b"a message longer than the others" * 3, b"\x01\x00\x00\x00"]
STREAM = b"".join(map(frame, MESSAGES))


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_a_stream_may_be_cut_anywhere(cut):
    splitter = FrameSplitter()
    before = splitter.feed(STREAM[:cut])
    whole = [sum(HEAD_BYTES + len(m) for m in MESSAGES[: i + 1]) <= cut for i in range(len(MESSAGES))]
    assert len(before) == sum(whole)
    assert before + splitter.feed(STREAM[cut:]) == MESSAGES


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(0, 400), max_size=12))
def test_a_stream_may_be_cut_into_any_pieces(messages, cuts):
    stream = b"".join(map(frame, messages))
    borders = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    splitter = FrameSplitter()
    found = [m for a, b in itertools.pairwise(borders) for m in splitter.feed(stream[a:b])]
    assert found == messages


def test_byte_by_byte():
    splitter = FrameSplitter()
    assert [m for byte in STREAM for m in splitter.feed(bytes([byte]))] == MESSAGES
