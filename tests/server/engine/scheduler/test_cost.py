"""What a step costs, and what the scheduler does without."""

from __future__ import annotations

import subprocess
import sys
import time

from pagetide_server.engine.scheduler import Scheduler

from .requests import config, request


def test_a_step_of_512_decodes_takes_less_than_two_milliseconds():
    steps = 40
    scheduler = Scheduler(
        config(num_blocks=512 * 16, max_num_seqs=512, max_num_batched_tokens=8192, block_size=16, max_queue_len=512)
    )
    for i in range(512):
        scheduler.add(request(f"r{i}", [i] * 16, max_tokens=steps + 2))
    best = float("inf")
    for _ in range(steps):
        start = time.perf_counter()
        scheduler.settle(scheduler.schedule(), [7] * 512)
        best = min(best, time.perf_counter() - start)
    assert scheduler.stats().running == 512
    assert best < 2e-3


def test_the_scheduler_imports_neither_torch_nor_numpy():
    code = "import sys, pagetide_server.engine.scheduler; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
