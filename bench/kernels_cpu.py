"""Attention on the CPU, gather + SDPA beside the C++ op; ms of one layer: `bench/kernels_cpu.py [threads] [bfloat16]`.

The caches of 16 layers are used in turn, so that keys and values come from memory as they do in a model. Best of some
rounds; GB/s are the keys and values that had to be read over the time of the C++ op. The second argument is the type of
the caches (float32).
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable

# Set before torch starts its threads, as the engine does.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

import torch

from pagetide_kernels.attention_plan import make_plan
from pagetide_kernels.cpu import attention as cpu_attention
from pagetide_kernels.torch_attention import attend

BLOCK = 16
ROUNDS = 24
CACHE_BYTES = 1 << 28
TYPES = ("float32", "bfloat16", "float16")
# name: ((tokens in the cache, of which are query rows) of each sequence, heads, KV heads, head size, window)
CASES: dict[str, tuple[list[tuple[int, int]], int, int, int, int | None]] = {
    "decode 32 x 512, 16/8 heads x 128": ([(512, 1)] * 32, 16, 8, 128, None),
    "decode 1 x 1024, 16/8 heads x 128": ([(1024, 1)], 16, 8, 128, None),
    "decode 8 x 4096, 32/8 heads x 128": ([(4096, 1)] * 8, 32, 8, 128, None),
    "decode 64 x 64..379, 4/1 heads x 256": ([(64 + 5 * i, 1) for i in range(64)], 4, 1, 256, None),
    "decode 8 x 4096, window 512, 4/1 x 256": ([(4096, 1)] * 8, 4, 1, 256, 512),
    "prefill 1 x 2048, 16/8 heads x 128": ([(2048, 2048)], 16, 8, 128, None),
    "prefill 16 x 128, 16/8 heads x 128": ([(128, 128)] * 16, 16, 8, 128, None),
    "32 decodes and a chunk of 256": ([(512, 1)] * 32 + [(700, 256)], 16, 8, 128, None),
}


def best_ms(work: Callable[[int], object]) -> float:
    """The quickest of some rounds of `work(round)`, in milliseconds."""
    times = []
    for i in range(ROUNDS):
        start = time.perf_counter()
        work(i)
        times.append(time.perf_counter() - start)
    return min(times[2:]) * 1e3


def compare(
    kept: torch.dtype, batch: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, window: int | None
) -> str:
    """One case: both times, their ratio, the bandwidth, the largest difference."""
    contexts = torch.tensor([c for c, _ in batch], dtype=torch.int32)
    counts = [q for _, q in batch]
    starts = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32)
    width = -(-int(contexts.max()) // BLOCK)
    blocks = len(batch) * width
    tables = torch.randperm(blocks, dtype=torch.int32).view(len(batch), width)
    layers = max(2, min(16, CACHE_BYTES // (2 * blocks * BLOCK * kv_heads * dim * kept.itemsize)))
    caches = torch.empty(layers, 2, blocks, BLOCK, kv_heads, dim, dtype=kept).normal_()
    query = torch.randn(int(starts[-1]), heads, dim)
    plan = make_plan(tables, contexts, starts, caches.shape[2:], window)

    def torch_op(i: int) -> torch.Tensor:
        return attend(query, *caches[i % layers], plan, dim**-0.5, None)

    def native_op(i: int) -> torch.Tensor:
        return cpu_attention.attend(query, *caches[i % layers], tables, contexts, starts, dim**-0.5, window, None)

    difference = (torch_op(0) - native_op(0)).abs().max().item()
    slow, fast = best_ms(torch_op), best_ms(native_op)
    read = sum(min(c, window + q - 1 if window else c) for c, q in batch) * kv_heads * dim * 2 * kept.itemsize
    return f"{slow:9.2f}{fast:9.2f}{slow / fast:8.1f}{read / fast / 1e6:8.1f}{difference:10.1e}"


def main() -> None:
    """Print one line a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("threads", nargs="?", type=int, default=0, help="0: as many as torch takes (default)")
    parser.add_argument("kept", nargs="?", default="float32", choices=TYPES, help="type of the caches (float32)")
    args = parser.parse_args()
    if args.threads < 0:
        parser.error(f"argument threads: {args.threads}: must be at least 0")
    torch.set_num_threads(args.threads or torch.get_num_threads())
    torch.manual_seed(0)
    print(f"{args.kept}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}")
    print(f"{'':40}{'torch':>9}{'C++':>9}{'ratio':>8}{'GB/s':>8}{'differ':>10}")
    for name, case in CASES.items():
        print(f"{name:40}{compare(getattr(torch, args.kept), *case)}", flush=True)


if __name__ == "__main__":
    main()
