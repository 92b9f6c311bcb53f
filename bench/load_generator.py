"""What `pagetide bench` itself costs: tokens per second that one core of it reads, and the delay that it adds.

    python bench/load_generator.py [--streams 200] [--tokens 400] [--step-ms 10] [--profile]

A server in a process of its own writes one event a stream every step, made beforehand and on time to the millisecond.
The rate is events over the generator's CPU seconds, so that it does not matter what else this machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import ClassVar

import uvloop

from pagetide_server.bench.main import main as bench

CARD = b'{"data": [{"id": "fake", "vocab_size": 32000}]}'
TEXT = (
    b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,"model":"fake","choices":'
    b'[{"index":0,"text":" word","logprobs":null,"finish_reason":%s,"stop_reason":null}]}\n\n'
)
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":%d,"total_tokens":8}}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Stream(asyncio.Protocol):
    """Answers whatever is asked: a GET with the model's card, a POST with a stream."""

    open: ClassVar[dict[Stream, int]] = {}

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        if head.startswith(b"GET /v1/models"):
            kind = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            self.transport.write(kind % len(CARD) + CARD)
        elif head.startswith(b"GET"):
            self.transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        elif len(body) < int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]):
            return
        else:
            self.transport.write(HEAD)
            self.open[self] = self._tokens
        self._data = b""

    def connection_lost(self, error: Exception | None) -> None:
        self.open.pop(self, None)

    def step(self) -> None:
        """One token more."""
        left = self.open[self] = self.open[self] - 1
        data = chunk(TEXT % (b"null" if left else b'"length"'))
        if not left:
            del self.open[self]
            data += chunk(USAGE % self._tokens) + b"0\r\n\r\n"
        self.transport.write(data)


def chunk(data: bytes) -> bytes:
    """In HTTP's chunked form."""
    return b"%x\r\n%s\r\n" % (len(data), data)


async def serve(tokens: int, step_s: float) -> None:
    """Until killed."""
    server = await asyncio.get_running_loop().create_server(lambda: Stream(tokens), "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    due = time.monotonic()
    while True:
        due = max(due + step_s, time.monotonic())
        await asyncio.sleep(due - time.monotonic())
        for stream in list(Stream.open):
            stream.step()


def main() -> int:
    """Measure and print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        uvloop.run(serve(args.tokens, args.step_ms / 1000))
    command = [sys.executable, __file__, "--serve", f"--tokens={args.tokens}", f"--step-ms={args.step_ms}"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        return measure(int(server.stdout.readline()), args)
    finally:
        server.kill()
        server.wait()


def measure(port: int, args: argparse.Namespace) -> int:
    """Run the command in this process against the server, twice as many requests as streams."""
    file = Path(tempfile.mkdtemp()) / "figures.json"
    flags = [f"--concurrency={args.streams}", f"--requests={2 * args.streams}", f"--output-tokens={args.tokens}"]
    profile = cProfile.Profile()
    used = time.process_time()
    if args.profile:
        profile.enable()
    code = bench([f"http://127.0.0.1:{port}", "--input-tokens=8", f"--json={file}", *flags])
    profile.disable()
    used = time.process_time() - used
    got = json.loads(file.read_text())
    count = got["tokens"]["output"]
    print(
        f"\n{count} tokens, {got['output_tokens_per_s']:,.0f}/s, {count / used:,.0f} per CPU second of the generator;"
    )
    step = args.step_ms / 1000
    print(f"gaps of {1000 * step:g} ms were seen as p50 {1000 * got['inter_token']['p50']:.2f} ms, "
          f"p99 {1000 * got['inter_token']['p99']:.2f} ms")  # fmt: skip
    if args.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(18)
    return code


if __name__ == "__main__":
    sys.exit(main())
