"""What the gateway costs on one core: short requests and streamed chunks per second, and delay added to a first token.

    python bench/gateway.py [--seconds 5] [--replicas 4] [--json FILE]

The gateway is the real command with its real router; it has one thread, so one core. Replicas are faked by a process
that answers from memory over raw sockets, and the clients by another. Rates are given as seen and by second of the
gateway's processor time: on a machine that has other work, or slow clients, only the second says what it can do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import multiprocessing
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

CHUNK = b'data: {"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":" word","logprobs":null}]}\n\n'
PIECE = b"%x\r\n%s\r\n" % (len(CHUNK), CHUNK)
DONE = b"data: [DONE]\n\n"
SHORT = b'{"choices":[{"index":0,"text":" fine","finish_reason":"length"}],"usage":{"prompt_tokens":40}}'
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
STREAMS = 200
FIRST_TOKEN_STREAMS = 50


# ---- replicas


class FakeReplica(asyncio.Protocol):
    """Answers `stream: N` with N chunks at a pace of so many a second (0: at once), anything else with a short body."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._held = b""

    def data_received(self, data: bytes) -> None:
        self._held += data
        while (end := self._held.find(b"\r\n\r\n")) >= 0:
            found = _LENGTH.search(self._held, 0, end)
            size = end + 4 + (int(found[1]) if found else 0)
            if len(self._held) < size:
                return
            request, self._held = self._held[:size], self._held[size:]
            self._answer(request, request[end + 4 :])

    def _answer(self, request: bytes, body: bytes) -> None:
        if request.startswith(b"GET /v1/models"):
            self._whole(b'{"data":[{"id":"m"}]}')
        elif request.startswith(b"GET "):
            self._whole(b"")
        elif (wanted := json.loads(body)).get("stream"):
            self._stream(wanted["max_tokens"], wanted["seed"])
        else:
            self._whole(SHORT)

    def _whole(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)

    def _stream(self, count: int, a_second: float) -> None:
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        if a_second and count > 1:
            self.more()
            paced(a_second).add(self, count - 1)
            return
        for _ in range(count):
            self._transport.write(PIECE)
        self.end()

    def more(self) -> None:
        """One chunk."""
        self._transport.write(PIECE)

    def end(self) -> None:
        """The end of a stream."""
        self._transport.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(DONE), DONE))


class Pace:
    """Gives all its streams a chunk at each tick, as an engine's step does; one timer costs less than one a stream."""

    def __init__(self, a_second: float) -> None:
        self._period = 1 / a_second
        self._left: dict[FakeReplica, int] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, stream: FakeReplica, count: int) -> None:
        """From the next tick on."""
        self._left[stream] = count
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        tick = time.monotonic()
        while self._left:
            tick += self._period
            await asyncio.sleep(max(0.0, tick - time.monotonic()))
            for stream, left in list(self._left.items()):
                stream.more()
                self._left[stream] = left - 1
                if left == 1:
                    stream.end()
                    del self._left[stream]
        self._task = None


paced = functools.cache(Pace)


def serve_replicas(count: int, ports: Any) -> None:
    """A process of fake replicas; prints their ports and runs until killed."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(FakeReplica, "127.0.0.1", 0, backlog=1024) for _ in range(count)]
        ports.send([server.sockets[0].getsockname()[1] for server in servers])
        await asyncio.Event().wait()

    uvloop.run(run())


# ---- clients


class Client(asyncio.Protocol):
    """One connection that asks again and again, or for one stream; counts what comes by a mark in it."""

    def __init__(self, request: bytes, mark: bytes, repeat: bool) -> None:
        self._request, self._mark, self._repeat = request, mark, repeat
        self._rest = b""
        self.count = 0
        self.first = 0.0
        self.begin = 0.0
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self.ask()

    def ask(self) -> None:
        """Send the request."""
        self.begin, self.first = time.monotonic(), 0.0
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        # A mark may come in two parts; a part of it is never counted twice.
        data = self._rest + data
        found = data.count(self._mark)
        self._rest = data[1 - len(self._mark) :]
        if found:
            self.first = self.first or time.monotonic()
            self.count += found
        if self._repeat:
            if found:
                self.ask()
        elif data.endswith(b"0\r\n\r\n") and not self.ended.done():
            self.ended.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        """End the connection."""
        self._transport.close()


def request_of(body: dict[str, Any]) -> bytes:
    """The bytes of a completion request."""
    text = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(text)}"
    return f"{head}\r\n\r\n".encode() + text


async def connect(port: int, request: bytes, mark: bytes, repeat: bool) -> Client:
    """One client that has begun."""
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: Client(request, mark, repeat), "127.0.0.1", port)
    return client


async def short_requests(port: int, seconds: float) -> int:
    """Requests that 32 connections got answered one after another."""
    request = request_of({"model": "m", "prompt": "The tide comes in and goes out " * 5, "max_tokens": 1})
    clients = [await connect(port, request, b'"choices"', True) for _ in range(32)]
    await asyncio.sleep(seconds)
    for client in clients:
        client.close()
    return sum(client.count for client in clients)


async def streams(port: int, count: int, tokens: int, a_second: float, apart_s: float = 0.0) -> tuple[int, list[float]]:
    """(chunks, seconds to the first one) of so many streams, which begin `apart_s` after one another."""

    def body(number: int) -> dict[str, Any]:
        return {"model": "m", "prompt": f"{number} " * 40, "max_tokens": tokens, "seed": a_second, "stream": True}

    clients = []
    for number in range(count):
        clients.append(await connect(port, request_of(body(number)), b'"text"', False))
        await asyncio.sleep(apart_s)
    await asyncio.gather(*(client.ended for client in clients))
    for client in clients:
        client.close()
    if short := [client for client in clients if client.count != tokens]:
        raise RuntimeError(f"{len(short)} streams ended early")
    return sum(client.count for client in clients), [client.first - client.begin for client in clients]


# ---- the gateway


@contextlib.contextmanager
def gateway(ports: list[int]) -> Iterator[tuple[int, int]]:
    """(port, process id) of a gateway."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    urls = ",".join(f"http://127.0.0.1:{p}" for p in ports)
    command = [sys.executable, "-m", "pagetide_cli.main", "gateway", "--host=127.0.0.1", f"--port={port}"]
    command += [f"--service=m={urls}", "--log-level=warning", "--drain-seconds=0"]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as process:
        try:
            yield port, process.pid
        finally:
            process.terminate()
            process.wait(timeout=20)


def wait_until_ready(port: int, replicas: int) -> None:
    """Return when the gateway sees all replicas ready."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            text = b"".join(iter(lambda: client.recv(65536), b""))
            if f'state="ready"}} {replicas:.1f}'.encode() in text:
                return
        time.sleep(0.1)
    raise TimeoutError("the gateway did not see its replicas")


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rate_of(pid: int, work: Any) -> dict[str, float]:
    """Run `work`, a coroutine whose result is a count (or begins with one); its rates."""
    begin, cpu = time.monotonic(), cpu_seconds(pid)
    result = uvloop.run(work)
    count = result[0] if isinstance(result, tuple) else result
    seconds, cpu = time.monotonic() - begin, cpu_seconds(pid) - cpu
    return {"per_second": count / seconds, "per_cpu_second": count / cpu, "cpu_share": cpu / seconds}


def first_token_ms(port: int, seconds: float) -> float:
    """Median milliseconds to the first chunk, where FIRST_TOKEN_STREAMS streams run at all times."""
    count = int(FIRST_TOKEN_STREAMS * seconds)
    # Each lasts a second.
    return statistics.median(uvloop.run(streams(port, count, 20, 20, 1 / FIRST_TOKEN_STREAMS))[1]) * 1000


def measure(seconds: float, ports: list[int]) -> dict[str, Any]:
    """All figures."""
    with gateway(ports) as (port, pid):
        wait_until_ready(port, len(ports))
        uvloop.run(short_requests(port, 1))  # warm
        short = rate_of(pid, short_requests(port, seconds))
        offered = rate_of(pid, streams(port, STREAMS, int(130 * seconds), 130.0))
        flat_out = rate_of(pid, streams(port, STREAMS, int(400 * seconds), 0.0))
        through, direct = first_token_ms(port, seconds), first_token_ms(ports[0], seconds)
    return {
        "short_requests": short,
        "chunks_at_26000_a_second": offered,
        "chunks_as_fast_as_they_come": flat_out,
        "first_token_ms": {"direct": direct, "through": through, "added": through - direct},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each part (default: %(default)s)")
    parser.add_argument("--replicas", type=int, default=4, help="fake replicas (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    replicas = context.Process(target=serve_replicas, args=(args.replicas, there), daemon=True)
    replicas.start()
    try:
        figures = measure(args.seconds, here.recv())
    finally:
        replicas.kill()
    print(json.dumps(figures, indent=2))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
