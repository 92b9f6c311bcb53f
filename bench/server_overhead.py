"""What the API process costs, with a faked engine: streamed tokens per second of one core, and delay added to a token.

    python bench/server_overhead.py [--streams 200] [--tokens 300] [--no-pin] [--json FILE]

The server is the real one (HTTP side, engine process, messages, detokenizer); only the engine's core is replaced, by
one that gives every sequence a token a step at a fixed pace (paced_core.py). As in a real engine, the tokens of a step
come all at the same moment, so most of a token's delay is the handling of those before it.

The API process has a core of its own, the last one; engine process and client share the others. With --no-pin the
system places all three as it likes; on two cores the API process then shares one with the client, now and then.

delivered_per_s  tokens that reached their clients; the pace of the steps bounds it.
cpu_s, us_per_token, tokens_per_cpu_s  CPU time of the API process, the requests' start and end included: it does not
                 matter what else this machine does.
added_ms         from the moment when the core hands a step's tokens on (before they are encoded and sent) to the moment
                 when the client has read them: both processes, the sockets between, and the client's own reading of the
                 tokens before. What else runs on this machine counts too.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from paced_core import byte_tokenizer

from pagetide_server import serve

# Begins an event with a token; ends the last chunk of a body.
MARK, LAST_CHUNK = b"data: {", b"0\r\n\r\n"
READ_BYTES = 64 * 1024
SILENCE_SECONDS = 60.0


class Cores(NamedTuple):
    """Who runs where: the API process alone, the engine process and the client together."""

    api: int
    others: list[int]


def choose_cores() -> Cores:
    """The last core for the API process; ends the program where there is no other one."""
    *others, api = sorted(os.sched_getaffinity(0))
    if not others:
        raise SystemExit("there is only one core: the API process cannot have one of its own; add --no-pin")
    return Cores(api, others)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(streams: int, tokens: int, step_seconds: float, cores: Cores | None) -> dict[str, float]:
    """Run one server and its streams; rates and delays."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes.json"
        env = {"BENCH_STEP_S": str(step_seconds), "BENCH_STREAMS": str(streams), "BENCH_NOTES": str(notes)}
        if cores is not None:
            env |= {"BENCH_API_CORE": str(cores.api), "BENCH_OTHER_CORES": ",".join(map(str, cores.others))}
        arrivals, used = _serve_and_read(port, env, streams, tokens)
        made: dict[str, list[float]] = json.loads(notes.read_text())
    return _figures([made[str(number)] for number in range(streams)], arrivals, used)


def _serve_and_read(port: int, env: dict[str, str], streams: int, tokens: int) -> tuple[list[list[float]], float]:
    """When each token of each stream came, and the CPU time of the API process meanwhile."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, "--serve", "pagetide/bench", f"--port={port}", "--host=127.0.0.1"]
    command += ["--log-level=warning", "--max-queue-len=100000"]
    server = subprocess.Popen(command, env={**os.environ, **env, "PYTHONPATH": path}, stdout=subprocess.PIPE)
    assert server.stdout is not None
    try:
        if not server.stdout.readline():
            raise SystemExit("the server did not start")
        before = cpu_seconds(server.pid)
        arrivals = read_streams(port, streams, tokens)
        return arrivals, cpu_seconds(server.pid) - before
    finally:
        server.terminate()
        server.wait(30)


def read_streams(port: int, streams: int, tokens: int) -> list[list[float]]:
    """Open the streams; when each token of each one had been read.

    As little as can be done while they run: what a client does with a token is none of the server's delay.
    """
    connections = [_request(port, number, tokens) for number in range(streams)]
    reads: dict[int, list[tuple[float, bytes]]] = {one.fileno(): [] for one in connections}
    by_number = {one.fileno(): one for one in connections}
    with select.epoll() as poll:
        for number in reads:
            poll.register(number, select.EPOLLIN)
        left = streams
        while left:
            ready = poll.poll(SILENCE_SECONDS)
            if not ready:
                raise SystemExit(f"{left} streams have been silent for {SILENCE_SECONDS} s")
            for number, _ in ready:
                data = by_number[number].recv(READ_BYTES)
                reads[number].append((time.monotonic(), data))
                if not data or data.endswith(LAST_CHUNK):
                    poll.unregister(number)
                    left -= 1
    for one in connections:
        one.close()
    return [_arrivals(reads_of_one) for reads_of_one in reads.values()]


def _request(port: int, number: int, tokens: int) -> socket.socket:
    """A connection on which one stream has been asked for."""
    body = json.dumps({"prompt": [number], "max_tokens": tokens, "stream": True}).encode()
    connection = socket.create_connection(("127.0.0.1", port))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def _arrivals(reads: list[tuple[float, bytes]]) -> list[float]:
    """When each event of one stream had come, from when each piece of its bytes had."""
    arrivals, tail = [], b""
    for now, data in reads:
        # A mark may be cut by the border of two reads; the end of the last one is too short to hold a whole mark.
        text = tail + data
        arrivals += [now] * text.count(MARK)
        tail = text[1 - len(MARK) :]
    return arrivals


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
    parser.add_argument("--pin", action=argparse.BooleanOptionalAction, default=True, help="cores as said above")
    parser.add_argument("--json")
    args = parser.parse_args()
    cores = choose_cores() if args.pin else None
    if cores is not None:
        os.sched_setaffinity(0, cores.others)
        print(f"API process on core {cores.api}; engine process and client on {', '.join(map(str, cores.others))}")
    many = measure(args.streams, args.tokens, args.step_ms / 1000, cores)
    few = measure(50, min(args.tokens, 100), 0.05, cores)
    result = {"many": many, "few": few}
    for name, row in result.items():
        print(name, "  ".join(f"{key}={value:,.2f}" for key, value in row.items()))
    if args.json:
        told = {name: {"pinned": args.pin, **row} for name, row in result.items()}
        Path(args.json).write_text(json.dumps(told, indent=1))
    return 0


def serve_here(arguments: list[str]) -> int:
    """Run the server of one measurement in this process, on its own core if it has one."""
    if "BENCH_API_CORE" in os.environ:
        os.sched_setaffinity(0, [int(os.environ["BENCH_API_CORE"])])
    return serve.main(arguments, "paced_core:create", byte_tokenizer)


if __name__ == "__main__":
    sys.exit(serve_here(sys.argv[2:]) if sys.argv[1:2] == ["--serve"] else main())
