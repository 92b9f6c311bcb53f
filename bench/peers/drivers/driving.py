"""What all drivers share: the job they read, the clock, and what they write. Plain Python: it runs in any peer's venv.

A driver reads its job as JSON from its standard input and writes its result as JSON to the file named by its only
argument, so that whatever an engine prints is in nobody's way.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
# A prompt that begins like none of a workload's.
WARM_UP = list(range(30_100, 30_164))
WARM_UP_TOKENS = 8


@dataclasses.dataclass
class Job:
    """What to run.

    Attributes:
        model: folder or file.
        prompts: token ids of each.
        lengths: tokens of each answer.
        threads: how many compute.
        options: of the driver.
    """

    model: str
    prompts: list[list[int]]
    lengths: list[int]
    threads: int
    options: dict[str, Any]

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer."""
        return max(len(p) + n for p, n in zip(self.prompts, self.lengths, strict=True))


def read_job() -> Job:
    """The job of this process; its number of threads goes to the environment, for the libraries to find."""
    job = Job(**json.load(sys.stdin))
    os.environ["OMP_NUM_THREADS"] = str(job.threads)
    return job


class Watch:
    """Time, and the machine's work meanwhile, from here to `stop`: that of `pids` and their children, and of others."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids or (os.getpid(),)
        self._busy, self._own = _busy_seconds(), self._own_seconds()
        self.started = time.perf_counter()

    def stop(self) -> dict[str, float]:
        """Seconds, and the shares of all cores that these and other processes used."""
        seconds = time.perf_counter() - self.started
        own = self._own_seconds() - self._own
        others = max(0.0, _busy_seconds() - self._busy - own)
        whole = seconds * (os.cpu_count() or 1)
        # The system counts in ticks, so that a short time may come out as more than all cores have.
        return {"seconds": seconds, "own_share": min(1.0, own / whole), "others_share": min(1.0, others / whole)}

    def _own_seconds(self) -> float:
        return sum(_cpu_seconds(pid) for top in self._pids for pid in tree(top))


def tree(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # that thread has ended
            continue
        for child in children:
            yield from tree(int(child))


def peak_mib(pid: int) -> float:
    """The most memory that a process and those below it held, in MiB: the sum of their peaks."""
    total = 0.0
    for each in tree(pid):
        for line in Path(f"/proc/{each}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                total += int(line.split()[1]) / 1024
    return total


def _busy_seconds() -> float:
    fields = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / TICKS


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:  # it has ended
        return 0.0
    return sum(int(n) for n in fields[11:13]) / TICKS


def write_result(
    job: Job, watched: dict[str, float], answers: list[list[int]] | list[int], first: list[float], peak: float
) -> None:
    """Write the result: figures of the `Watch`, and of the answers (their tokens, or only how many each has).

    Args:
        job: what was asked.
        watched: what `Watch.stop` said.
        answers: of each prompt, in order.
        first: seconds from the start to the first token of each prompt; empty where the engine does not tell.
        peak: most memory, in MiB.

    Raises:
        SystemExit: an answer is shorter or longer than it must be.
    """
    counts = [a if isinstance(a, int) else len(a) for a in answers]
    if counts != job.lengths:
        wrong = next((i, n, m) for i, (n, m) in enumerate(zip(counts, job.lengths, strict=True)) if n != m)
        raise SystemExit(f"answer {wrong[0]} has {wrong[1]} tokens instead of {wrong[2]}")
    told = [a[:8] for a in answers if not isinstance(a, int)]
    result = {**watched, "tokens": sum(counts), "first_token_seconds": first, "peak_mib": peak, "beginnings": told}
    Path(sys.argv[1]).write_text(json.dumps(result), "utf-8")
