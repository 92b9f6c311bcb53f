"""A small OpenAI-like server to measure, whose pace and faults each test sets; and the command as a process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pagetide_cli.main import main

ROOT = Path(__file__).parents[3]


class FakeServer:
    """Streams `a` as often as it is asked to. What a test may set:

    Attributes:
        first_s, gap_s: before the first event, and between two.
        per_event: tokens in one event.
        status: of every n-th answer other than 200: {n: status}.
        has: which of "models", "vocab", "tokenize", "usage", "metrics", "done" there are.
        break_after: events after which the connection is closed.
        error_after: events after which an error event comes.
        gone_after: answers after which nobody listens any more.
        queue_s: what /metrics says of each request's time in the queue.
    """

    def __init__(self) -> None:
        self.first_s, self.gap_s, self.per_event = 0.0, 0.0, 1
        self.status: dict[int, int] = {}
        self.has = {"models", "vocab", "tokenize", "usage", "metrics", "done"}
        self.break_after = self.error_after = self.gone_after = 10**9
        self.site: web.TCPSite | None = None
        self.queue_s = 0.03
        self.models = ["fake"]
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.peers: set[Any] = set()
        self.open = self.most_open = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes([
            web.get("/v1/models", self._models),
            web.post("/tokenize", self._tokenize),
            web.get("/metrics", self._metrics),
            web.post("/v1/completions", self._complete),
            web.post("/v1/chat/completions", self._complete),
        ])  # fmt: skip
        return app

    async def _models(self, request: web.Request) -> web.Response:
        if "models" not in self.has:
            raise web.HTTPNotFound
        extra = {"vocab_size": 1000, "max_model_len": 4096} if "vocab" in self.has else {}
        return web.json_response({"data": [{"id": name, "object": "model", **extra} for name in self.models]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        if "tokenize" not in self.has:
            raise web.HTTPNotFound
        body = await request.json()
        return web.json_response({"count": count(body.get("prompt"), body.get("messages"))})

    async def _metrics(self, request: web.Request) -> web.Response:
        if "metrics" not in self.has:
            raise web.HTTPNotFound
        name, n = "pagetide_request_queue_seconds", len(self.bodies)
        rows = "\n".join(f'{name}_bucket{{le="{le}"}} {n * (self.queue_s <= le)}' for le in (0.01, 0.1, float("inf")))
        text = f"# TYPE {name} histogram\n{rows}\n{name}_sum {n * self.queue_s}\n{name}_count {n}\n"
        return web.Response(text=text.replace("inf", "+Inf"))

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.peers.add(request.transport.get_extra_info("peername"))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            return await self._answer(request, body)
        finally:
            self.open -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        usage = {
            "prompt_tokens": count(body.get("prompt"), body.get("messages")),
            "completion_tokens": body["max_tokens"],
        }
        usage["prompt_tokens_details"] = {"cached_tokens": 3}
        if not body.get("stream"):
            return web.json_response({"choices": [{"text": "a"}], "usage": usage})
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        for every, status in self.status.items():
            if len(self.bodies) % every == 0:
                return web.json_response({"error": {"message": f"told to answer {status}"}}, status=status)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        if len(self.bodies) >= self.gone_after:
            response.force_close()
            if len(self.bodies) == self.gone_after and self.site is not None:
                await self.site.stop()
        await response.prepare(request)
        await self._stream(request, response, body)
        if "usage" in self.has:
            await response.write(event({"choices": [], "usage": usage}))
        if "done" in self.has:
            await response.write(b"data: [DONE]\n\n")
        return response

    async def _stream(self, request: web.Request, response: web.StreamResponse, body: dict[str, Any]) -> None:
        is_chat = "messages" in body
        if is_chat:
            await response.write(event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
        await asyncio.sleep(self.first_s)
        events = -(-body["max_tokens"] // self.per_event)
        for number in range(events):
            if number == self.break_after:
                request.transport.abort()
                return
            if number == self.error_after:
                await response.write(event({"error": {"message": "the engine is gone"}}))
                return
            reason = "length" if number == events - 1 else None
            choice = {"delta": {"content": "a"}} if is_chat else {"text": "a"}
            data = event({"choices": [{**choice, "index": 0, "finish_reason": reason}]})
            # In two pieces: an event need not come whole.
            await response.write(data[:9])
            await response.write(data[9:])
            if number < events - 1:
                await asyncio.sleep(self.gap_s)


def count(prompt: Any, messages: Any) -> int:
    """Tokens: an id is one, a word is two, and a chat has five more."""
    if messages is not None:
        return 5 + 2 * len(messages[0]["content"].split())
    return len(prompt) if isinstance(prompt, list) else 2 * len(prompt.split())


def event(message: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(message).encode() + b"\n\n"


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    """A running server, in a thread; its address is `fake.url`."""
    server, loop = FakeServer(), asyncio.new_event_loop()
    runner = web.AppRunner(server.app(), shutdown_timeout=1)
    loop.run_until_complete(runner.setup())
    server.site = web.TCPSite(runner, "127.0.0.1", 0)
    loop.run_until_complete(server.site.start())
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield server
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(20)
    loop.close()


def command(*arguments: object, **env: str) -> subprocess.Popen[str]:
    """`pagetide bench` in a process of its own."""
    path = os.pathsep.join(str(ROOT / folder) for folder in ("operator", "server", "kernels"))
    return subprocess.Popen(
        [sys.executable, "-m", "pagetide_cli.main", "bench", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **env}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts commands that are gone at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: object, **env: str) -> subprocess.Popen[str]:
        started.append(command(*arguments, **env))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process, which is quicker: exit code, stdout, stderr with the log."""

    def run(*arguments: object) -> tuple[int, str, str]:
        caplog.set_level("INFO")
        try:
            code = main(["bench", *map(str, arguments)])
        except SystemExit as error:
            code = int(str(error.code))
        said = capsys.readouterr()
        return code, said.out, said.err + caplog.text

    return run
