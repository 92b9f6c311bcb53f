"""The Triton ops on a GPU beside torch's own and beside the floor: `python bench/kernels.py`.

Attention is compared with torch's fused op over contiguous keys and values, which a paged cache does not have: what
paging costs is the difference. The floor is the time in which this GPU copies the bytes, or multiplies matrices of as
many operations, whichever is longer; both rates are measured first.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F

BLOCK = 16
# name: ((tokens in the cache, of which are query rows) of each sequence, heads, KV heads, head size)
ATTENTION: dict[str, tuple[list[tuple[int, int]], int, int, int]] = {
    "decode 256 x 512, 16/8 heads x 128": ([(512, 1)] * 256, 16, 8, 128),
    "decode 64 x 2048, 32/8 heads x 128": ([(2048, 1)] * 64, 32, 8, 128),
    "decode 1 x 32768, 32/8 heads x 128": ([(32768, 1)], 32, 8, 128),
    "prefill 1 x 8192, 32/8 heads x 128": ([(8192, 8192)], 32, 8, 128),
    "prefill 16 x 512, 16/8 heads x 128": ([(512, 512)] * 16, 16, 8, 128),
}
Timer = Callable[[Callable[[], object]], float]


def rates(ms: Timer) -> tuple[float, float]:
    """(bytes a second, bfloat16 operations a second) of this GPU."""
    source = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    matrix = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    return 2e3 * source.numel() / ms(lambda: target.copy_(source)), 2e3 * 8192**3 / ms(lambda: matrix @ matrix)


def attention(
    batch: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, ms: Timer, bandwidth: float, flops: float
) -> str:
    """ours, torch's and the floor, in milliseconds."""
    from pagetide_kernels.paged_attention import paged_attention

    contexts, counts = zip(*batch, strict=True)
    width = -(-max(contexts) // BLOCK)
    options = {"dtype": torch.bfloat16, "device": "cuda"}
    query = torch.randn(sum(counts), heads, dim, **options)
    caches = torch.randn(2, len(batch) * width, BLOCK, kv_heads, dim, **options)
    tables = torch.randperm(len(batch) * width, dtype=torch.int32, device="cuda").view(len(batch), width)
    lengths = torch.tensor(contexts, dtype=torch.int32, device="cuda")
    starts = torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32, device="cuda")
    arguments = (query, *caches, tables, lengths, starts, max(counts), max(contexts), dim**-0.5)
    ours = ms(lambda: paged_attention(*arguments))
    q = query.view(len(batch), counts[0], heads, dim).transpose(1, 2)
    k, v = torch.randn(2, len(batch), kv_heads, contexts[0], dim, **options)
    causal = counts[0] > 1
    theirs = ms(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True))
    moved = sum(c * kv_heads * 2 + 2 * n * heads for c, n in batch) * dim * 2
    worked = sum(4 * heads * dim * n * (c - (n - 1) / 2) for c, n in batch)
    floor = 1e3 * max(moved / bandwidth, worked / flops)
    return f"{ours:9.3f}{theirs:9.3f}{floor:9.3f}{floor / ours:8.0%}"


def small_ops(ms: Timer, bandwidth: float) -> None:
    """The ops that only move bytes."""
    from pagetide_kernels.gpu.gated import gated
    from pagetide_kernels.gpu.rms_norm import rms_norm
    from pagetide_kernels.gpu.sample import sample

    options = {"dtype": torch.bfloat16, "device": "cuda"}
    hidden, residual = torch.randn(2, 2048, 4096, **options)
    weight, gate_up = torch.randn(4096, **options), torch.randn(2048, 28672, **options)

    def torch_norm() -> torch.Tensor:
        residual.add_(hidden)
        return F.rms_norm(residual, (4096,), weight, 1e-6)

    def torch_gated() -> torch.Tensor:
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate) * up

    show("rms_norm with residual, 2048 x 4096", ms(lambda: rms_norm(hidden, weight, 1e-6, residual)), ms(torch_norm),
         4 * hidden.nbytes / bandwidth)  # fmt: skip
    show(
        "gated silu, 2048 x 14336",
        ms(lambda: gated(gate_up, "silu")),
        ms(torch_gated),
        1.5 * gate_up.nbytes / bandwidth,
    )
    logits = torch.randn(64, 151_936, device="cuda") * 3
    tables = torch.randint(0, 2**31 - 1, (2, 1 << 22), dtype=torch.int32, device="cuda")
    starts = torch.randint(0, (1 << 22) - logits.shape[1], (64, 2), device="cuda")
    column = torch.ones(64, device="cuda")
    arguments = (column, (column * 40).int(), column * 0.9, column * 0)
    ours = ms(lambda: sample(logits, *arguments, *tables, starts))
    show(
        "top-k 40, top-p 0.9 of 64 x 151936; sorting", ours, ms(lambda: logits.sort(-1)), 2 * logits.nbytes / bandwidth
    )


def show(name: str, ours: float, theirs: float, floor_s: float) -> None:
    """One line of the table."""
    print(f"{name:44}{ours:9.3f}{theirs:9.3f}{floor_s * 1e3:9.3f}{floor_s * 1e3 / ours:8.0%}", flush=True)


def main() -> int:
    """Print one line a case; 1 where there is no GPU."""
    if not torch.cuda.is_available():
        print("no GPU is here, so there is nothing to measure; for the CPU see bench/kernels_cpu.py", file=sys.stderr)
        return 1
    from triton.testing import do_bench

    def ms(work: Callable[[], object]) -> float:
        return float(do_bench(work, return_mode="median"))

    bandwidth, flops = rates(ms)
    print(f"{torch.cuda.get_device_name()}: {bandwidth / 1e9:.0f} GB/s, {flops / 1e12:.0f} TFLOP/s; bfloat16, ms")
    print(f"{'':44}{'ours':>9}{'torch':>9}{'floor':>9}{'of it':>8}")
    for name, case in ATTENTION.items():
        print(f"{name:44}{attention(*case, ms, bandwidth, flops)}", flush=True)
    small_ops(ms, bandwidth)
    return 0


if __name__ == "__main__":
    sys.exit(main())
