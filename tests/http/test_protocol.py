"""Clients that connect and do not ask, or not in time, or too much."""

from __future__ import annotations

import asyncio

import pytest
import uvicorn

from pagetide_http.protocol import ConnectionLimits, GuardedProtocol

HEAD_BYTES = 1000
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def application(scope, receive, send):
    """Says "fine": at once, or a second later, or without an end; or, behind the body, which headers came."""
    if scope["path"] == "/headers":
        while (await receive())["more_body"]:
            pass
        names = b",".join(name for name, _ in scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"<%b>" % names})
        return
    if scope["path"] == "/slow":
        await asyncio.sleep(1)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"fine", "more_body": scope["path"] == "/endless"})
    if scope["path"] == "/endless":
        while (await receive())["type"] != "http.disconnect":
            pass


@pytest.fixture
async def port(start):
    http = GuardedProtocol.within(ConnectionLimits(head_timeout_s=0.3, head_bytes=HEAD_BYTES))
    return await start(
        uvicorn.Server(uvicorn.Config(application, http=http, ws="none", lifespan="off", log_config=None))
    )


async def test_a_connection_that_asks_nothing_is_closed(port, answer_to):
    assert await answer_to(port) == b""


@pytest.mark.parametrize(
    ("before", "statuses"),
    [
        pytest.param([], [408], id="the first"),
        pytest.param([GET], [200, 408], id="a later one"),
        pytest.param([GET + b"GET"], [200, 408], id="one that begins in a piece with the one before"),
        pytest.param([GET.replace(b"/ ", b"/slow ")], [200, 408], id="one that begins before the answer to another"),
    ],
)
async def test_a_head_that_comes_drop_by_drop_is_408(port, answer_to, before, statuses):
    drops = [b" /"] if before and not before[0].endswith(b"\r\n") else [b"GET /"]
    answer = await answer_to(port, *before, *drops, *[b"v"] * 40)
    assert [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]] == statuses
    assert b"fine" in answer or statuses == [408]


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([b"x: " + b"y" * 90 + b"\r\n"] * 11, id="piece by piece"),
        pytest.param([b"x: " + b"y" * HEAD_BYTES + b"\r\n\r\n"], id="in one piece"),
    ],
)
async def test_a_huge_head_is_431(port, answer_to, pieces):
    answer = await answer_to(
        port, b"".join([b"GET / HTTP/1.1\r\nx-request-id: abc\r\n", *pieces[:1]]), *pieces[1:], pause=0
    )
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"\r\nx-request-id: abc\r\n" in answer


@pytest.mark.parametrize(
    ("path", "then"),
    [
        pytest.param(b"/endless", [b"\x00rubbish"], id="rubbish while it runs"),
        pytest.param(b"/", [b"zz\r\n"], id="the rest of a body, which is no HTTP"),
        pytest.param(b"/", [b"1\r\nx\r\n"] * 40, id="the rest of a body, which does not end"),
    ],
)
async def test_an_answer_is_not_followed_by_another_one(port, answer_to, path, then):
    framing = b"" if path == b"/endless" else b"transfer-encoding: chunked\r\n"
    answer = await answer_to(port, b"POST " + path + b" HTTP/1.1\r\nhost: x\r\n" + framing + b"\r\n", *then)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_an_idle_connection_outlives_the_limit_of_a_head(port):
    """Though a body that nobody read has come to its end on it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n")
    await reader.readuntil(b"fine")
    writer.write(b"x")
    await asyncio.sleep(0.05)
    writer.write(b"x")
    await asyncio.sleep(0.6)
    writer.write(GET)
    await asyncio.wait_for(reader.readuntil(b"HTTP/1.1 200 "), 5)
    writer.close()


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n", b"xx", id="a body behind its answer"),
        pytest.param(GET, b"\r\n", id="an empty line between two requests"),
        pytest.param(GET, b"", id="nothing"),
    ],
)
async def test_a_connection_without_a_further_request_is_closed(start, answer_to, first, then):
    http = GuardedProtocol.within(ConnectionLimits(head_timeout_s=30, head_bytes=HEAD_BYTES))
    config = uvicorn.Config(application, http=http, ws="none", lifespan="off", log_config=None, timeout_keep_alive=1)
    answer = await answer_to(await start(uvicorn.Server(config)), first, then)
    assert answer.endswith(b"fine\r\n0\r\n\r\n")


async def test_trailers_are_no_headers(port, answer_to):
    head = b"POST /headers HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    answer = await answer_to(port, head, b"1\r\nx\r\n0\r\n", b"authorization: Bearer stolen\r\n\r\n")
    assert b"<host,transfer-encoding,connection>" in answer
