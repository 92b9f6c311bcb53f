"""No step waits for the compiler: a kernel is compiled once for a model, whatever the batch, and again where said so.

Triton compiles again when a number becomes 1, or a multiple of 16 or none, unless it is told not to look. It looks only
where there is a GPU; here its own rule for that is asked, for the launches that the ops would make.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

LAUNCHES = """
import collections, json, torch
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature
from pagetide_kernels.gpu import gated, move_blocks, paged_attention, rms_norm, rotary_cache, sample

backend, compiled = make_backend(GPUTarget("cuda", 90, 32)), collections.defaultdict(set)

def run(self, *args, grid, warmup, **options):
    _, special, others = create_function_from_signature(self.signature, self.params, backend)(*args, **options)
    compiled[self.__name__].add(f"{special} {sorted(others.items())}")

JITFunction.run = run
ints = lambda *values: torch.tensor(values, dtype=torch.int32)
caches = [torch.zeros(20, 16, 2, 64).half() for _ in "kv"]
for rows in (1, 2, 3, 4, 15, 16, 17, 48):
    product = torch.zeros(rows, 8 * 64).half()
    query, key, value = (part.unflatten(1, (-1, 64)) for part in product.split((256, 128, 128), 1))
    for count, longest in ((1, 900), (1, 1100), (1, 5000), (1, 40_000), (2, 900), (9, 900)):
        tokens = query.repeat(count, 1, 1)
        lengths, starts = torch.full((rows,), longest).int(), torch.arange(rows + 1).int() * count
        tables = torch.zeros(rows, -(-longest // 16)).int()
        paged_attention.attend(tokens, *caches, tables, lengths, starts, count, longest, 0.1, None, None)
    angles = torch.zeros(2, rows, 64)[:, :, :32]
    rotary_cache.rotate_and_cache(query, key, value, *angles, *caches, torch.arange(rows))
    hidden = torch.zeros(rows, 128).half()
    rms_norm.rms_norm(hidden, hidden[0], 1e-6, hidden.clone())
    gated.gated(hidden, "silu")
    columns = [torch.zeros(3, rows)[i] for i in range(3)]
    tables = torch.zeros(2, 99).int()
    sample.sample(torch.zeros(rows, 99), columns[0], torch.zeros(rows).int(), *columns[1:], *tables,
                  torch.zeros(rows, 2).long())
    move_blocks.move_blocks(caches, [c.repeat(4, 1, 1, 1) for c in caches], [(i % 20, i) for i in range(rows)])
print(json.dumps({name: len(found) for name, found in compiled.items()}))
"""


def test_the_batch_makes_no_kernel_compile_again() -> None:
    # A process of its own: here, kernels are defined for the interpreter.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHES], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == {
        # Tiles of few rows, of which long decodes are cut, and tiles of many.
        "_attention_kernel": 3,
        "_merge_kernel": 1,
        "_rotate_and_cache_kernel": 1,
        "_rms_norm_kernel": 1,
        "_gated_kernel": 1,
        "_sample_kernel": 1,
        "_move_blocks_kernel": 1,
    }
