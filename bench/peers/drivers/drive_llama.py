"""llama.cpp's server, over HTTP (it has no library of its own that batches)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from driving import read_job
from replay import free_port, replay, running


def main() -> None:
    """Run the job."""
    job = read_job()
    port, slots, context = free_port(), job.options["slots"], job.options["context"]
    command = [
        str(Path(os.environ["PEERS"]) / "llama.cpp/bin/llama-server"),
        *("-m", job.model, "--host", "127.0.0.1", "--port", str(port)),
        *("-t", str(job.threads), "-tb", str(job.threads)),
        *("-np", str(slots), "-c", str(slots * context), "-b", "2048", "-ub", "512"),
        *("--log-verbosity", "1"),
    ]
    with running(command) as pid:
        asyncio.run(replay(job, f"http://127.0.0.1:{port}", pid, "/health"))


if __name__ == "__main__":
    main()
