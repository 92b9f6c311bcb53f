"""Responses whose client or server leaves in the middle."""

from __future__ import annotations

import asyncio

import pytest

from pagetide_server.api.streaming import WatchedResponse, send_events


class Parts:
    """An endless stream that notes when it is closed."""

    def __init__(self):
        self.closed = False

    async def stream(self):
        try:
            while True:
                yield b"data: x\n\n"
                await asyncio.sleep(0)
        finally:
            self.closed = True


async def test_a_stream_that_cannot_be_sent_is_closed_at_once():
    parts, sent = Parts(), []

    async def send(message):
        sent.append(message)
        if len(sent) == 3:
            raise asyncio.CancelledError

    stream = parts.stream()
    with pytest.raises(asyncio.CancelledError):
        await send_events(send, stream)
    assert parts.closed


@pytest.mark.parametrize("leaves", [True, False], ids=["the client leaves", "the server's task is cancelled"])
async def test_nothing_runs_on_behind_a_response(leaves):
    gone, ended = asyncio.Event(), []

    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    async def work(send):
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append("work")

    async def send(message):
        pass

    scope = {}
    before = asyncio.all_tasks()
    response = asyncio.create_task(WatchedResponse(work)(scope, receive, send))
    await asyncio.sleep(0.01)
    if leaves:
        gone.set()
        await response
        assert scope["state"]["client_gone"]
    else:
        response.cancel()
        with pytest.raises(asyncio.CancelledError):
            await response
    assert ended == ["work"]
    assert asyncio.all_tasks() == before


async def test_an_error_before_anything_is_sent_is_raised():
    async def work(send):
        raise ValueError("before the first token")

    async def receive():
        await asyncio.Event().wait()

    with pytest.raises(ValueError, match="before the first token"):
        await WatchedResponse(work)({}, receive, lambda message: None)
