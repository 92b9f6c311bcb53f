"""What each setting costs and brings, for docs/tuning.md: two servers that differ in one setting, side by side.

    python bench/tuning.py MODEL [--only NAME] [--rounds 3] [-- FLAGS OF BOTH SERVERS]

Both servers are up all the time, and `pagetide bench` loads them alternately with the same prompts, in alternating
order, so that other load on the machine affects both alike. Printed are medians over the rounds, and the median
of their ratios with the smallest and the largest one; only the ratios apply to another machine, and nothing
does where their range contains 1.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

START_SECONDS = 300
BENCH_SECONDS = 600


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two values of one setting and the load they meet. `figures`: paths within the JSON of `pagetide bench`."""

    name: str
    settings: tuple[str, str]
    load: str
    figures: Sequence[str]
    both: str = ""


SHORT_MEMORY = "--max-num-seqs=8 --max-model-len=512"
PAIRS = (
    Pair(
        "batch slots", ("--max-num-seqs=2", "--max-num-seqs=8"),
        "--requests=16 --concurrency=8 --input-tokens=32 --output-tokens=24",
        ("output_tokens_per_s", "ttft.p50", "inter_token.p50"),
    ),
    Pair(
        "token budget", ("--max-num-batched-tokens=64", "--max-num-batched-tokens=512"),
        "--requests=9 --concurrency=3 --input-tokens=256 --output-tokens=12",
        ("requests_per_s", "ttft.p50", "inter_token.p50", "inter_token.p99"),
    ),
    Pair(
        "block size", ("--block-size=8", "--block-size=32"),
        "--requests=40 --concurrency=2 --prefix-tokens=60 --input-tokens=20 --output-tokens=4",
        ("tokens.prefix_cache_hits", "ttft.p50", "requests_per_s"),
    ),
    Pair(
        "KV memory", ("--kv-cache-memory-gib=0.02", "--kv-cache-memory-gib=0.2"),
        "--requests=16 --concurrency=8 --input-tokens=96 --output-tokens=32",
        ("output_tokens_per_s", "ttft.p90", "e2e.p90"), SHORT_MEMORY,
    ),
    Pair(
        "swap space", ("--swap-space-gib=0", "--swap-space-gib=1 --preemption-mode=swap"),
        "--requests=4 --concurrency=4 --input-tokens=256 --output-tokens=64",
        ("output_tokens_per_s", "e2e.p90"), f"{SHORT_MEMORY} --kv-cache-memory-gib=0.04",
    ),
    Pair(
        "prefix cache", ("--no-enable-prefix-caching", "--enable-prefix-caching"),
        "--requests=20 --concurrency=2 --prefix-tokens=256 --input-tokens=16 --output-tokens=8",
        ("ttft.p50", "requests_per_s"),
    ),
    Pair(
        "context length", ("--max-model-len=512", "--max-model-len=2048"),
        "--requests=32 --concurrency=8 --input-tokens=64 --output-tokens=32", ("output_tokens_per_s", "ttft.p50"),
    ),
)  # fmt: skip


@contextlib.contextmanager
def started(model: str, flags: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server with these settings, from its start to its end."""
    command = [sys.executable, "-m", "pagetide_server", model, "--host=127.0.0.1", "--port=0", *flags]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def address_in(log: Path, process: subprocess.Popen[bytes]) -> str:
    """Where the server says that it serves."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"serving \S+ at (http\S+)", log.read_text()):
            return found[1]
        time.sleep(0.2)
    raise SystemExit(f"the server did not start:\n{log.read_text()}")


def measured(address: str, load: str, seed: int, folder: Path) -> dict[str, Any]:
    """What `pagetide bench` says."""
    file = folder / "figures.json"
    flags = [*load.split(), f"--seed={seed}", "--warmup=1", f"--json={file}"]
    command = [sys.executable, "-m", "pagetide_cli.main", "bench", address, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BENCH_SECONDS)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def round_of(load: str, addresses: Sequence[str], seed: int, folder: Path) -> list[dict[str, Any]]:
    """Both servers' figures for the same prompts; an even round begins with the second server."""
    sides = (0, 1) if seed % 2 else (1, 0)
    found = {side: measured(addresses[side], load, seed, folder) for side in sides}
    return [found[0], found[1]]


def preempted(address: str) -> float:
    """How often a sequence was preempted so far."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as reply:
        rows = re.findall(r"^pagetide_preemptions_total\S* (\S+)$", reply.read().decode(), re.MULTILINE)
    return sum(map(float, rows))


def figure(found: dict[str, Any], path: str) -> float:
    """The number at a dotted path."""
    value: Any = found
    for part in path.split("."):
        value = value[part]
    return float(value)


def compare(pair: Pair, model: str, common: Sequence[str], rounds: int) -> None:
    """Measure a pair and print its rows."""
    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
        folder = Path(work)
        settings = [[*common, *pair.both.split(), *one.split()] for one in pair.settings]
        logs = [folder / f"server-{side}.log" for side in (0, 1)]
        # Both load at the same time.
        servers = [stack.enter_context(started(model, *one)) for one in zip(settings, logs, strict=True)]
        addresses = [address_in(log, server) for log, server in zip(logs, servers, strict=True)]
        runs = [round_of(pair.load, addresses, seed, folder) for seed in range(1, rounds + 1)]
        gave_way = [preempted(a) / rounds for a in addresses]
    print(f"\n{pair.name}: {pair.load}", flush=True)
    for path in pair.figures:
        left, right = (statistics.median(figure(run[side], path) for run in runs) for side in (0, 1))
        ratios = [figure(b, path) / max(figure(a, path), 1e-9) for a, b in runs]
        told = f"x {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| {path} | `{pair.settings[0]}` {left:.4g} | `{pair.settings[1]}` {right:.4g} | {told} |")
    if any(gave_way):
        print(f"preemptions a round: {gave_way[0]:.1f} and {gave_way[1]:.1f}", flush=True)


def main() -> None:
    """Compare all pairs, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--only", choices=[pair.name for pair in PAIRS])
    parser.add_argument("--rounds", type=int, default=3)
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args, common = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers end as well
    for pair in PAIRS:
        if args.only in (None, pair.name):
            compare(pair, args.model, common, args.rounds)


if __name__ == "__main__":
    main()
