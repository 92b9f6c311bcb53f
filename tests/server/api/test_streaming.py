"""Responses whose client or server leaves in the middle."""

from __future__ import annotations

import asyncio

import pytest

from pagetide_http.fast_path import FAST_PATH, FastPath
from pagetide_server.api.streaming import WatchedResponse, fast_path, send_events


class Endless:
    """An endless stream, one part at a time."""

    def __init__(self):
        self.made = 0
        self.way = None

    async def next(self):
        self.made += 1
        await asyncio.sleep(0)
        return b"data: %d\n\n" % self.made

    def hurry(self, way):
        self.way = way


async def test_a_stream_that_cannot_be_sent_makes_no_more():
    events, sent = Endless(), []

    async def send(message):
        sent.append(message)
        if len(sent) == 3:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await send_events(send, events)
    assert events.made == 2


class Flow:
    write_paused = False


class Transport:
    """As uvloop's: once closed, it is not to be written to."""

    def __init__(self, log):
        self._log = log
        self.closed = False

    def is_closing(self):
        return self.closed

    def write(self, data):
        if self.closed:
            raise RuntimeError("the handler is closed")
        self._log.append(data)


class Cycle:
    """What a short way looks at of uvicorn's side of a response."""

    response_started, response_complete, disconnected, chunked_encoding = True, False, False, True

    def __init__(self, log):
        self.flow, self.transport = Flow(), Transport(log)


async def test_parts_on_the_fast_path_and_others_keep_their_order():
    log = []
    cycle = Cycle(log)

    async def send(message):
        log.append(message)

    class Three(Endless):
        async def next(self):
            # The second part finds a client that does not read.
            cycle.flow.write_paused = self.made == 1
            part = await super().next()
            return part if self.made <= 3 else b""

    events, way = Three(), FastPath(cycle)
    await send_events(send, events, way)
    assert events.way is way
    head, first, second, third, done = log
    assert head["type"] == "http.response.start"
    assert first == b"9\r\ndata: 1\n\n\r\n"
    assert second == {"type": "http.response.body", "body": b"data: 2\n\n", "more_body": True}
    assert third == b"9\r\ndata: 3\n\n\r\n"
    assert done == {"type": "http.response.body", "body": b"data: [DONE]\n\n"}


def test_a_way_is_made_where_it_is_asked_for():
    cycle = Cycle([])
    way = fast_path({"extensions": {FAST_PATH: cycle}})
    assert isinstance(way, FastPath)
    assert way.is_free()
    assert fast_path({}) is None, "another server has no such way"


def test_a_way_whose_client_has_left_is_not_free():
    cycle = Cycle([])
    way = FastPath(cycle)
    assert way.is_free()
    cycle.transport.closed = True
    assert not way.is_free()


@pytest.mark.parametrize("leaves", [True, False], ids=["the client leaves", "the server's task is cancelled"])
async def test_nothing_runs_on_behind_a_response(leaves):
    gone, begun, ended = asyncio.Event(), asyncio.Event(), []

    async def receive():
        await gone.wait()
        return {"type": "http.disconnect"}

    async def work(send):
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append("work")

    async def send(message):
        pass

    scope = {}
    before = asyncio.all_tasks()
    response = asyncio.create_task(WatchedResponse(work)(scope, receive, send))
    await begun.wait()
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
