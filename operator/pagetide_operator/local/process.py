"""One replica's process: start, end, exit code, last words. All that touches the operating system is here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

# Below the range from which Linux takes ports of outgoing connections (32768 up), so that none of those takes a port
# between its choice here and the replica's start.
_PORTS = range(20000, 32000)


async def spawn(command: Sequence[str], environment: Mapping[str, str], log: Path) -> asyncio.subprocess.Process:
    """Start a command in its own process group; it dies with this process (Linux). Output is appended to `log`.

    Raises:
        OSError: the log cannot be written or the process not be made.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "pagetide_operator.local.child", str(os.getpid())),
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )


async def end(process: asyncio.subprocess.Process, drain_s: float) -> None:
    """SIGTERM, and SIGKILL for the whole group after `drain_s`; returns when the process is gone."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), drain_s)
    except TimeoutError:
        kill_group(process.pid)
        await process.wait()


def kill_group(pid: int) -> None:
    """SIGKILL whatever is left of a replica's process group, such as an engine that outlived its server."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def free_port(taken: Collection[int]) -> int:
    """A loopback port on which nothing listens and which is not in `taken`.

    Raises:
        OSError: none was found.
    """
    for port in random.sample(_PORTS, 200):
        if port in taken:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no free port on 127.0.0.1")


def describe_exit(code: int) -> str:
    """`exit code 1` or `killed by SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
