"""What the API process costs, with a faked engine: streamed tokens per second of one core, and delay added to a token.

    python bench/server_overhead.py [--streams 200] [--tokens 300] [--json FILE]

The server is the real one (HTTP side, engine process, messages, detokenizer); only the engine's core is replaced, by
one that gives every sequence a token a step at a fixed pace. As in a real engine, the tokens of a step come all at the
same moment, so most of a token's delay is the handling of those before it.

delivered_per_s  tokens that reached their clients; the pace of the steps bounds it.
cpu_s, us_per_token, tokens_per_cpu_s  CPU time of the API process, the requests' start and end included: it does not
                 matter what else this machine does.
added_ms         from the moment when the core hands a step's tokens on (before they are encoded and sent) to the moment
                 when the client has read them: both processes, the sockets between, and the client's own reading of the
                 tokens before. What else runs on this machine counts too; `chrt --rr 1` in front keeps it out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import uvloop
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

import pagetide_server.serve as serve
from pagetide_server.api.server import Server
from pagetide_server.text.tokenizer import Tokenizer
from pagetide_server.wire.messages import AbortRequest, AddRequest, EngineStats, Ready, SequenceOutput, StepOutput
from pagetide_spec.config import EngineConfig

VOCAB = 256
# In the sorted alphabet of bytes, "!" comes first.
LETTER_A = ord("a") - ord("!")
MAX_LEN = 100_000
MARK = b"data: {"


class PacedCore:
    """Gives each sequence one token every `step_seconds`; notes when. Prompts are one token: the stream's number."""

    def __init__(self, step_seconds: float, streams: int, notes: Path) -> None:
        self.ready = Ready(
            max_model_len=MAX_LEN, vocab_size=VOCAB, eos_token_ids=[], max_num_seqs=4096, max_num_batched_tokens=4096,
            block_size=16, num_blocks=1, num_swap_blocks=0, dtype="none", device="none", attention="none",
        )  # fmt: skip
        self._step_seconds, self._streams, self._notes = step_seconds, streams, notes
        self._left: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        # Of each step: when, and the numbers of the streams that got a token.
        self._steps: list[tuple[float, list[int]]] = []
        self._next = 0.0

    def add(self, request: AddRequest) -> list[SequenceOutput]:
        self._left[request.request_id] = request.params.max_tokens or 16
        self._numbers[request.request_id] = request.prompt_token_ids[0]
        return []

    def abort(self, request: AbortRequest) -> list[SequenceOutput]:
        self._left.pop(request.request_id, None)
        return []

    def has_work(self) -> bool:
        # All together: the first stream waits for the last one.
        return bool(self._left) and (len(self._numbers) >= self._streams or bool(self._steps))

    def is_waiting(self) -> bool:
        return bool(self._left)

    def step(self) -> StepOutput:
        made = list(self._left)
        outputs = [self._token(request_id) for request_id in made]
        time.sleep(max(0.0, self._next - time.monotonic()))
        stats, numbers = self.stats(), [self._numbers[request_id] for request_id in made]
        now = time.monotonic()
        self._next = now + self._step_seconds
        self._steps.append((now, numbers))
        return StepOutput(outputs=outputs, stats=stats, time=now, tokens=len(outputs), sequences=len(outputs))

    def _token(self, request_id: str) -> SequenceOutput:
        left = self._left[request_id] = self._left[request_id] - 1
        if left:
            return SequenceOutput(request_id=request_id, token_ids=[LETTER_A + left % 26])
        del self._left[request_id]
        return SequenceOutput(request_id=request_id, token_ids=[LETTER_A], finish_reason="length")

    def stats(self) -> EngineStats:
        return EngineStats(running=len(self._left))

    def close(self) -> None:
        times: dict[int, list[float]] = {}
        for moment, numbers in self._steps:
            for number in numbers:
                times.setdefault(number, []).append(moment)
        self._notes.write_text(json.dumps(times))


def create(config: EngineConfig, progress: Callable[[str, float], None]) -> PacedCore:
    """The core, as the environment sets it."""
    env = os.environ
    return PacedCore(float(env["BENCH_STEP_S"]), int(env["BENCH_STREAMS"]), Path(env["BENCH_NOTES"]))


def byte_tokenizer(config: EngineConfig) -> Tokenizer:
    """One token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, {})


class _Server(Server):
    def __init__(self, config: EngineConfig, keys: list[str]) -> None:
        super().__init__(config, keys, "server_overhead:create", byte_tokenizer)


class _Reader(asyncio.Protocol):
    """One stream: when each of its events came."""

    def __init__(self, number: int, tokens: int) -> None:
        body = json.dumps({"prompt": [number], "max_tokens": tokens, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body
        self.arrivals: list[float] = []
        self._tail = b""
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        # A mark may be cut by the border of two reads; the end of the last one is too short to hold a whole mark.
        data = self._tail + data
        self.arrivals += [now] * data.count(MARK)
        self._tail = data[1 - len(MARK) :]
        if b"[DONE]" in data:
            self._transport.close()
            self.done.set_result(None)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(streams: int, tokens: int, step_seconds: float) -> dict[str, float]:
    """Run one server and its streams; rates and delays."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        return await _serve_and_drive(streams, tokens, step_seconds, port, Path(folder) / "notes.json")


async def _serve_and_drive(streams: int, tokens: int, step_seconds: float, port: int, notes: Path) -> dict[str, float]:
    env = {**os.environ, "BENCH_STEP_S": str(step_seconds), "BENCH_STREAMS": str(streams), "BENCH_NOTES": str(notes)}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), env.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, "--serve", "pagetide/bench", f"--port={port}", "--host=127.0.0.1"]
    command += ["--log-level=warning", "--max-queue-len=100000"]
    server = await asyncio.create_subprocess_exec(*command, env=env, stdout=asyncio.subprocess.PIPE)
    try:
        assert server.stdout is not None
        await asyncio.wait_for(server.stdout.readline(), 60)
        used = cpu_seconds(server.pid)
        arrivals = await _read_all(port, streams, tokens)
        used = cpu_seconds(server.pid) - used
    finally:
        server.send_signal(signal.SIGTERM)
        await server.wait()
    made: dict[str, list[float]] = json.loads(await asyncio.to_thread(notes.read_text))
    return _figures([made[str(number)] for number in range(streams)], arrivals, used)


async def _read_all(port: int, streams: int, tokens: int) -> list[list[float]]:
    """When each token of each stream came."""
    loop = asyncio.get_running_loop()
    readers = [_Reader(number, tokens) for number in range(streams)]
    for reader in readers:
        await loop.create_connection(lambda reader=reader: reader, "127.0.0.1", port)
    await asyncio.wait_for(asyncio.gather(*(reader.done for reader in readers)), 300)
    return [reader.arrivals for reader in readers]


def _figures(made: list[list[float]], arrivals: list[list[float]], cpu_s: float) -> dict[str, float]:
    added = [b - a for row, came in zip(made, arrivals, strict=True) for a, b in zip(row, came, strict=True)]
    count = len(added)
    took = max(came[-1] for came in arrivals) - min(came[0] for came in arrivals)
    cuts = statistics.quantiles(added, n=100)
    return {
        "streams": len(arrivals),
        "tokens": count,
        "delivered_per_s": count / took,
        "cpu_s": cpu_s,
        "us_per_token": 1e6 * cpu_s / count,
        # A run that is too short to measure takes no tick of the clock.
        "tokens_per_cpu_s": count / max(cpu_s, 1 / os.sysconf("SC_CLK_TCK")),
        "added_p50_ms": 1000 * cuts[49],
        "added_p99_ms": 1000 * cuts[98],
    }


def main() -> int:
    """Measure both promises: 15,000 tokens/s at 200 streams, under 1 ms at 50."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--step-ms", type=float, default=10.0, help="pace of the many streams")
    parser.add_argument("--json")
    args = parser.parse_args()
    many = uvloop.run(measure(args.streams, args.tokens, args.step_ms / 1000))
    few = uvloop.run(measure(50, min(args.tokens, 100), 0.05))
    result = {"many": many, "few": few}
    for name, row in result.items():
        print(name, "  ".join(f"{key}={value:,.2f}" for key, value in row.items()))
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve.Server = _Server  # type: ignore[misc]
        sys.exit(serve.main(sys.argv[2:]))
    sys.exit(main())
