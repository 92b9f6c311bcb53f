"""Where a stream may be cut."""

from __future__ import annotations

import pytest

from pagetide_gateway.proxy.relay import whole_events


class Content:
    """A body in given pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    async def readany(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


async def test_what_never_ends_an_event_is_not_held_for_ever():
    piece = b"x" * (1 << 18)
    passed = [p async for p in whole_events(Content(*[piece] * 9))]
    assert b"".join(passed) == piece * 9
    assert max(map(len, passed)) <= (1 << 20) + len(piece)


@pytest.mark.parametrize(("size"), [1, 2, 3, 5, 100])
async def test_events_are_cut_behind_their_ends_however_they_come(size):
    whole = b"data: 1\n\ndata: 2\r\n\r\n: ping\n\ndata: rest"
    pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
    passed = [p async for p in whole_events(Content(*pieces))]
    assert b"".join(passed) == whole
    assert all(p.endswith((b"\n\n", b"\n\r\n")) for p in passed[:-1])
