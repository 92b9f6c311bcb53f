"""Pagetide as a server, over HTTP: its API process and its engine process. Options are engine settings."""

from __future__ import annotations

import asyncio
import sys

from driving import read_job
from replay import free_port, replay, running


def main() -> None:
    """Run the job."""
    job = read_job()
    port = free_port()
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in job.options.items()]
    command = [sys.executable, "-m", "pagetide_server", job.model, f"--port={port}", "--served-model-name=m"]
    with running([*command, "--log-level=warning", *flags]) as pid:
        asyncio.run(replay(job, f"http://127.0.0.1:{port}", pid, "/readyz"))


if __name__ == "__main__":
    main()
