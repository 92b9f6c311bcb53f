"""Time of the scheduler alone: one step of N decoding sequences, planned and settled, on one core.

    python bench/scheduler.py [--steps 300]

Prints, for growing N, milliseconds a step and microseconds a sequence: the latter stay level when growth is linear.
Then what requests that start together and share a prefix cost: tokens computed, steps, and time of planning them.
"""

from __future__ import annotations

import argparse
import statistics
import time

from pagetide_server.engine.scheduler import Scheduler, SchedulerConfig
from pagetide_server.wire.messages import AddRequest, SamplingParams

BLOCK_SIZE = 16
PROMPT = 64
SIZES = (64, 128, 256, 512, 1024, 2048)


def decoding(count: int, steps: int) -> Scheduler:
    """A scheduler with `count` sequences whose prompts are computed and which decode for `steps` more steps."""
    length = PROMPT + BLOCK_SIZE + steps + 8
    config = SchedulerConfig(
        block_size=BLOCK_SIZE,
        num_blocks=count * (length // BLOCK_SIZE + 2),
        num_swap_blocks=0,
        max_num_seqs=count,
        max_num_batched_tokens=count * (PROMPT + BLOCK_SIZE),
        max_model_len=length + 1,
        max_queue_len=count,
        eos_token_ids=frozenset({1}),
    )
    scheduler = Scheduler(config)
    for i in range(count):
        # Of different lengths, so that the sequences do not all begin a block in the same step.
        prompt = [2 + (i + j) % 30000 for j in range(PROMPT + i % BLOCK_SIZE)]
        params = SamplingParams(max_tokens=steps + 8)
        scheduler.add(AddRequest(request_id=str(i), prompt_token_ids=prompt, params=params, arrival=0.0))
    step = scheduler.schedule()
    scheduler.settle(step, [7] * count)
    return scheduler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="steps to time for each size")
    steps = parser.parse_args().steps
    print(f"{'sequences':>9} {'ms/step median':>15} {'p99':>8} {'us/sequence':>12}")
    for count in SIZES:
        times = sorted(timed_steps(count, steps))
        median = statistics.median(times)
        print(f"{count:9} {median * 1e3:15.3f} {times[int(len(times) * 0.99)] * 1e3:8.3f} {median / count * 1e6:12.2f}")
    requests, shared, tail = 64, 512, 16
    computed, taken, seconds = together(requests, shared, tail)
    print(
        f"\n{requests} requests of {shared} common and {tail} own tokens compute {computed} tokens before their first "
        f"(without sharing {requests * (shared + tail)}), in {taken} steps planned in {seconds * 1e3:.2f} ms"
    )


def together(requests: int, shared: int, tail: int) -> tuple[int, int, float]:
    """(tokens computed, steps, seconds) until each of `requests` that start together has its first token."""
    config = SchedulerConfig(
        block_size=BLOCK_SIZE,
        num_blocks=requests * (shared + tail) // BLOCK_SIZE + requests,
        num_swap_blocks=0,
        max_num_seqs=requests,
        max_num_batched_tokens=2048,
        max_model_len=shared + tail + 2,
        max_queue_len=requests,
    )
    scheduler = Scheduler(config)
    for i in range(requests):
        prompt = [*range(2, shared + 2), *[i] * tail]
        params = SamplingParams(max_tokens=1)
        scheduler.add(AddRequest(request_id=str(i), prompt_token_ids=prompt, params=params, arrival=0.0))
    computed, taken, started = 0, 0, time.perf_counter()
    while scheduler.has_work():
        step = scheduler.schedule()
        scheduler.settle(step, [7] * len(step.sampling()))
        computed += step.num_tokens
        taken += 1
    return computed, taken, time.perf_counter() - started


def timed_steps(count: int, steps: int) -> list[float]:
    """Seconds of each of `steps` steps that decode one token for each of `count` sequences."""
    scheduler = decoding(count, steps)
    token_ids, seconds = [7] * count, []
    for _ in range(steps):
        start = time.perf_counter()
        step = scheduler.schedule()
        scheduler.settle(step, token_ids)
        seconds.append(time.perf_counter() - start)
    return seconds


if __name__ == "__main__":
    main()
