"""Real connections: a server of a test's own in this process, and a client that sees every byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvicorn

from pagetide_spec.web import listen


@contextlib.asynccontextmanager
async def running(server: uvicorn.Server) -> AsyncIterator[int]:
    """Its port, as long as it runs."""
    listener = listen("127.0.0.1", 0)
    task = asyncio.create_task(server.serve([listener]))
    try:
        async with asyncio.timeout(5):
            while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.01)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, 10)


@pytest.fixture
async def start() -> AsyncIterator[Callable[[uvicorn.Server], Awaitable[int]]]:
    """`await start(server)` -> its port."""
    async with contextlib.AsyncExitStack() as stack:

        async def enter(server: uvicorn.Server) -> int:
            return await stack.enter_async_context(running(server))

        yield enter


async def read_all(port: int, *pieces: bytes, pause: float = 0.1) -> bytes:
    """All that comes until the other side closes the connection, to which `pieces` are written meanwhile."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def write() -> None:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(pause)

    writing = asyncio.create_task(write())
    async with asyncio.timeout(5):
        answer = await reader.read()
    writing.cancel()
    writer.close()
    return answer


@pytest.fixture
def answer_to() -> Callable[..., Awaitable[bytes]]:
    return read_all
