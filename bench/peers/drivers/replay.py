"""Replays a job against a server with OpenAI's /v1/completions, all requests at once, streamed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

import aiohttp
from driving import WARM_UP, WARM_UP_TOKENS, Job, Watch, peak_mib, write_result

START_SECONDS = 120.0


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: Sequence[str]) -> Iterator[int]:
    """Run a server meanwhile; its process id."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def replay(job: Job, url: str, pid: int, ready: str, warm_up: Sequence[int] = WARM_UP) -> None:
    """Wait until the server at `url` answers 200 at the path `ready`, run the job, and write the result.

    Raises:
        SystemExit: the server does not get ready, or refuses a request.
    """
    timeout = aiohttp.ClientTimeout(total=None)
    # A connection each: some servers close one that has answered while the next request is on its way.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:
        await _wait(session, ready)
        await _complete(session, list(warm_up), WARM_UP_TOKENS)
        watch = Watch(pid)
        found = await asyncio.gather(*map(_complete, [session] * len(job.prompts), job.prompts, job.lengths))
        watched = watch.stop()
    first = [moment - watch.started for moment, _ in found]
    write_result(job, watched, [count for _, count in found], first, peak_mib(pid))


async def _wait(session: aiohttp.ClientSession, path: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with session.get(path) as response:
                if response.status == 200:
                    return
        await asyncio.sleep(0.1)
    raise SystemExit(f"the server is not ready after {START_SECONDS:.0f} s")


async def _complete(session: aiohttp.ClientSession, prompt: list[int], length: int) -> tuple[float, int]:
    """(when the first token came, how many came)"""
    body: dict[str, Any] = {
        "model": "m",
        "prompt": prompt,
        "max_tokens": length,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first, count = 0.0, 0
    async with session.post("/v1/completions", json=body) as response:
        if response.status != 200:
            raise SystemExit(f"the server answers {response.status}: {await response.text()}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("choices"):
                first = first or time.perf_counter()
            if usage := event.get("usage"):
                count = usage["completion_tokens"]
    return first, count
