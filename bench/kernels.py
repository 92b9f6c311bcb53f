"""The Triton ops on a GPU beside torch's own and beside the floor: `python bench/kernels.py [--try]`.

Attention is compared with torch's fused op over contiguous keys and values, which a paged cache does not have: what
paging costs is the difference. Where scores are capped, which that op cannot, flex_attention stands for it. Results are
compared before anything is timed. The floor is the time in which this GPU copies the bytes, or multiplies matrices of
as many operations, whichever is longer; both rates are measured first. `--try` runs the script itself on a CPU, with
tiny shapes and kernels that are interpreted: its times mean nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

BLOCK = 16
Work = Callable[[], torch.Tensor | None]


@dataclasses.dataclass(frozen=True)
class Attention:
    """Sequences of `context` tokens in the cache, of which `rows` are query rows, all alike."""

    sequences: int
    context: int
    rows: int
    heads: int
    kv_heads: int
    dim: int
    window: int | None = None
    cap: float | None = None

    def __str__(self) -> str:
        """What it is, for the table."""
        kind = "decode" if self.rows == 1 else "prefill"
        rest = f", window {self.window}, capped" if self.window else ""
        return f"{kind} {self.sequences} x {self.context}, {self.heads}/{self.kv_heads} heads x {self.dim}{rest}"


CASES = [
    Attention(256, 512, 1, 16, 8, 128),
    Attention(64, 2048, 1, 32, 8, 128),
    Attention(1, 32_768, 1, 32, 8, 128),
    Attention(1, 8192, 8192, 32, 8, 128),
    Attention(16, 512, 512, 16, 8, 128),
    Attention(1, 8192, 8192, 8, 4, 256, window=1024, cap=50.0),
]
TINY = [Attention(3, 40, 1, 4, 2, 16), Attention(1, 1100, 1, 2, 1, 16), Attention(2, 20, 20, 4, 2, 16, 7, 5.0)]


@dataclasses.dataclass(frozen=True)
class Place:
    """Where it runs, in what type, how time is taken (milliseconds), and its bytes and operations per second."""

    device: str
    dtype: torch.dtype
    ms: Callable[[Work], float]
    bandwidth: float = 1.0
    flops: float = 1.0

    def random(self, *shape: int) -> torch.Tensor:
        """Normal numbers."""
        return torch.randn(*shape, dtype=self.dtype, device=self.device)

    def ints(self, values: object) -> torch.Tensor:
        """int32"""
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def show(self, name: str, ours: Work, theirs: Work, moved: float, worked: float = 0) -> None:
        """One line of the table: bytes that must be moved, operations that must be done."""
        times = [self.ms(work) for work in (ours, theirs)]
        floor = 1e3 * max(moved / self.bandwidth, worked / self.flops)
        print(f"{name:52}{times[0]:9.3f}{times[1]:9.3f}{floor:9.3f}{floor / times[0]:8.0%}", flush=True)


def measured(place: Place, size: int) -> Place:
    """`place` with its rates, by a copy and a product of matrices of `size`."""
    source = torch.empty(8 * size * size, dtype=torch.uint8, device=place.device)
    matrix, target = place.random(size, size), torch.empty_like(source)
    bandwidth = 2e3 * source.numel() / place.ms(lambda: target.copy_(source))
    return dataclasses.replace(place, bandwidth=bandwidth, flops=2e3 * size**3 / place.ms(lambda: matrix @ matrix))


def attention(place: Place, case: Attention) -> None:
    """Paged attention beside torch's over the same keys and values, gathered before."""
    from pagetide_kernels.paged_attention import paged_attention

    n, c, r, width = case.sequences, case.context, case.rows, -(-case.context // BLOCK)
    query = place.random(n * r, case.heads, case.dim)
    caches = place.random(2, n * width, BLOCK, case.kv_heads, case.dim)
    tables = torch.randperm(n * width, device=place.device).int().view(n, width)
    lengths, starts = place.ints([c] * n), place.ints([0, *itertools.accumulate([r] * n)])
    scale = case.dim**-0.5

    def ours() -> torch.Tensor:
        return paged_attention(query, *caches, tables, lengths, starts, r, c, scale, case.window, case.cap)

    q = query.view(n, r, case.heads, case.dim).transpose(1, 2)
    k, v = (cache[tables.long()].flatten(1, 2)[:, :c].transpose(1, 2).contiguous() for cache in caches)
    theirs = flex(case, q, k, v) if case.cap else sdpa(case, q, k, v)
    got, expected = ours().view(n, r, case.heads, case.dim).transpose(1, 2), theirs()
    torch.testing.assert_close(got.float(), expected.float(), rtol=3e-2, atol=3e-2)
    seen = sum(min(c - r + i + 1, case.window or c) for i in range(r))
    moved = (2 * c * case.kv_heads + 2 * r * case.heads) * case.dim * query.element_size()
    place.show(str(case), ours, theirs, n * moved, n * 4.0 * case.heads * case.dim * seen)


def sdpa(case: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], torch.Tensor]:
    """torch's fused attention."""
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=case.rows > 1, enable_gqa=True)


def flex(case: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], torch.Tensor]:
    """torch's flex_attention, compiled on a GPU; for whole prompts."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    window, cap = case.window or case.context, case.cap or 1.0

    def capped(score: torch.Tensor, b: object, h: object, row: object, key: object) -> torch.Tensor:
        return torch.tanh(score / cap) * cap

    def seen(b: object, h: object, row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= row) & (key > row - window)

    mask = create_block_mask(seen, None, None, case.rows, case.context, device=q.device)
    op = torch.compile(flex_attention) if q.is_cuda else flex_attention
    return lambda: op(q, k, v, score_mod=capped, block_mask=mask, enable_gqa=True)


def layers(place: Place, rows: int, size: int) -> None:
    """The ops around the matrix products of a layer: they only move bytes."""
    from pagetide_kernels.gpu.gated import gated
    from pagetide_kernels.gpu.rms_norm import rms_norm
    from pagetide_kernels.gpu.rotary_cache import rotate_and_cache
    from pagetide_kernels.reshape_and_cache import reshape_and_cache
    from pagetide_kernels.rotate_and_cache import rotated

    hidden, residual, weight = place.random(rows, size), place.random(rows, size), place.random(size)
    gate_up = place.random(rows, 7 * size)

    def torch_norm() -> torch.Tensor:
        return F.rms_norm(residual.add_(hidden), (size,), weight, 1e-6)

    def torch_gated() -> torch.Tensor:
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate) * up

    place.show(f"rms_norm with residual, {rows} x {size}", lambda: rms_norm(hidden, weight, 1e-6, residual), torch_norm,
               4 * hidden.nbytes)  # fmt: skip
    place.show(
        f"gated silu, {rows} x {7 * size // 2}", lambda: gated(gate_up, "silu"), torch_gated, 1.5 * gate_up.nbytes
    )
    query, key, value = place.random(rows, 48, size // 32).split((32, 8, 8), 1)
    cos, sin = place.random(2, rows, size // 64)
    caches = place.random(2, -(-rows // BLOCK), BLOCK, 8, size // 32)
    slots = torch.randperm(rows, device=place.device)

    def torch_rotary() -> torch.Tensor:
        reshape_and_cache(rotated(key, cos, sin), value, *caches, slots)
        return rotated(query, cos, sin)

    place.show(f"rotation and cache, {rows} x 32/8 heads x {size // 32}",
               lambda: rotate_and_cache(query, key, value, cos, sin, *caches, slots), torch_rotary,
               2 * sum(t.numel() for t in (query, key, value)) * query.element_size())  # fmt: skip


def others(place: Place, rows: int, vocabulary: int, count: int) -> None:
    """Sampling, beside sorting, which is what cutting at top-p takes without it; and copies of blocks of all layers."""
    from pagetide_kernels.gpu.move_blocks import move_blocks
    from pagetide_kernels.gpu.sample import sample

    logits = torch.randn(rows, vocabulary, device=place.device) * 3
    tables = torch.randint(0, 2**31 - 1, (2, 1 << 20), dtype=torch.int32, device=place.device)
    starts = torch.randint(0, (1 << 20) - vocabulary, (rows, 2), device=place.device)
    one = torch.ones(rows, device=place.device)
    for name, top_k, top_p in (("all tokens", 0, 1.0), ("top-k 40, top-p 0.9", 40, 0.9)):
        place.show(f"drawing of {rows} x {vocabulary}, {name}; sorting",
                   lambda k=top_k, p=top_p: sample(logits, one, (one * k).int(), one * p, one * 0, *tables, starts),
                   lambda: logits.sort(-1)[0], 2 * logits.nbytes)  # fmt: skip
    caches = [place.random(2 * count, BLOCK, 8, 128) for _ in range(8)]
    pairs = [(2 * i, 2 * i + 1) for i in range(count)]
    froms, tos = torch.tensor(pairs, device=place.device).T

    def torch_copies() -> None:
        for cache in caches:
            cache[tos] = cache[froms]

    moved = sum(cache.nbytes for cache in caches)
    place.show(f"copies of {count} blocks in 8 caches", lambda: move_blocks(caches, caches, pairs), torch_copies, moved)


def once(work: Work) -> float:
    """Milliseconds of one call."""
    started = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - started)


def place_of(tries: bool) -> tuple[Place, str]:
    """Where to run, and its name."""
    if tries:
        os.environ |= {"TRITON_INTERPRET": "1", "PAGETIDE_KERNELS": "triton", "CUDA_VISIBLE_DEVICES": ""}
        return Place("cpu", torch.float16, once), "a trial on the CPU"
    from triton.testing import do_bench

    place = Place("cuda", torch.bfloat16, lambda work: float(do_bench(work, return_mode="median")))
    return place, torch.cuda.get_device_name()


def main() -> int:
    """Print one line a case; 1 where there is no GPU, or Triton does not run on it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--try", dest="tries", action="store_true", help="run the script itself on a CPU")
    tries = parser.parse_args().tries
    if not (tries or torch.cuda.is_available()):
        print("no GPU is here, so there is nothing to measure; --try runs the script itself on a CPU, and "
              "bench/kernels_cpu.py measures the ops for CPUs", file=sys.stderr)  # fmt: skip
        return 1
    place, name = place_of(tries)
    from pagetide_kernels.dispatch import KernelChoiceError, choose

    try:
        chosen = choose(torch.device(place.device))
    except KernelChoiceError as error:
        print(error, file=sys.stderr)
        return 1
    if chosen.name != "triton":
        print(f"the ops here are those of {chosen.name}: {chosen.reason}", file=sys.stderr)
        return 1
    place = measured(place, 64 if tries else 8192)
    rates = f"{place.bandwidth / 1e9:.0f} GB/s, {place.flops / 1e12:.2f} TFLOP/s"
    print(f"{name}: {rates}; {place.dtype}, torch {torch.__version__}, milliseconds")
    print(f"{'':52}{'ours':>9}{'torch':>9}{'floor':>9}{'of it':>8}")
    for case in TINY if tries else CASES:
        attention(place, case)
    layers(place, *((5, 64) if tries else (8192, 4096)))
    others(place, *((3, 203, 2) if tries else (64, 151_936, 64)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
