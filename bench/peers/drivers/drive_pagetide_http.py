"""Pagetide as a server, over HTTP: its API process and its engine process. Options are engine settings."""

from __future__ import annotations

import asyncio
import sys

from driving import WARM_UP, read_job
from replay import free_port, replay, running


def main() -> None:
    """Run the job."""
    job = read_job()
    port = free_port()
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in job.options.items()]
    command = [sys.executable, "-m", "pagetide_server", job.model, f"--port={port}", "--served-model-name=m"]
    with running([*command, "--log-level=warning", *flags]) as pid:
        # (Models of tests have small vocabularies.)
        warm_up = [token % max(map(max, job.prompts)) for token in WARM_UP]
        asyncio.run(replay(job, f"http://127.0.0.1:{port}", pid, "/readyz", warm_up))


if __name__ == "__main__":
    main()
