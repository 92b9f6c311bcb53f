"""The C++ ops between a layer's matrix products against their float32 references."""

from __future__ import annotations

import pytest
import torch

from pagetide_kernels import dispatch
from pagetide_kernels.cpu import layer_ops
from pagetide_kernels.reference.gated import gated
from pagetide_kernels.reference.rms_norm import rms_norm
from pagetide_kernels.reference.rotary import rotate

pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.skipif(dispatch.choose(torch.device("cpu")).name != "cpp", reason="no C++ compiler"),
]

# The second is worth sharing among threads.
SIZES = [(3, 37), (70, 640), (1, 1)]


@pytest.mark.parametrize(("m", "n"), SIZES)
def test_rms_norm(m: int, n: int) -> None:
    hidden, weight = torch.randn(m, n), torch.randn(n)
    torch.testing.assert_close(layer_ops.rms_norm(hidden, weight, 1e-6), rms_norm(hidden, weight, 1e-6))


@pytest.mark.parametrize(("m", "n"), SIZES)
@pytest.mark.parametrize("normed", [True, False], ids=["x has a norm", "x has none"])
@pytest.mark.parametrize("following", [True, False], ids=["and a norm follows", "and none follows"])
def test_add_norm(m: int, n: int, normed: bool, following: bool) -> None:
    hidden, x, own, after = torch.randn(m, n), torch.randn(m, n), torch.randn(n), torch.randn(n)
    total = hidden + (rms_norm(x, own, 1e-5) if normed else x)
    got = hidden.clone()
    out = x.clone()
    layer_ops.add_norm(got, out, own if normed else None, 1e-5, after if following else None, out)
    torch.testing.assert_close(got, total)
    torch.testing.assert_close(out, rms_norm(total, after, 1e-5) if following else x)


@pytest.mark.parametrize(("m", "n"), SIZES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated(m: int, n: int, activation: str) -> None:
    gate_up = torch.randn(m, 2 * n) * 4
    gate_up[0, 0], gate_up[-1, n - 1] = 120.0, -120.0
    expected = gated(gate_up, activation)
    torch.testing.assert_close(layer_ops.gated(gate_up, activation), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "pairs"),
    [
        pytest.param(6, 2, 34, 17, id="whole heads"),
        pytest.param(5, 1, 80, 16, id="a part of each head"),
        pytest.param(4, 4, 256, 128, id="many numbers"),
    ],
)
@pytest.mark.parametrize("normed", [True, False], ids=["normed", "not normed"])
def test_rotate_and_cache(dtype: torch.dtype, heads: int, kv_heads: int, dim: int, pairs: int, normed: bool) -> None:
    tokens, slots = 19, torch.randperm(64)[:19]
    qkv, half = torch.randn(tokens, (heads + 2 * kv_heads) * dim), torch.randn(tokens, pairs)
    norms = (torch.randn(dim), torch.randn(dim)) if normed else (None, None)
    caches = [torch.full((4, 16, kv_heads, dim), float("nan"), dtype=dtype) for _ in "kv"]
    query, key, value = qkv.view(tokens, -1, dim).split([heads, kv_heads, kv_heads], 1)
    cos, sin = half.cos(), half.sin()
    expected = [
        rotate(part if norm is None else rms_norm(part, norm, 1e-6), cos, sin)
        for part, norm in ((query, norms[0]), (key, norms[1]))
    ]
    values = value.clone()
    angles = (torch.cat([cos, cos], 1), torch.cat([sin, sin], 1))
    layer_ops.rotate_and_cache(qkv, heads, angles, norms, 1e-6, (caches[0], caches[1]), slots)
    torch.testing.assert_close(query, expected[0], rtol=1e-5, atol=1e-5)
    written = [cache.view(64, kv_heads, dim)[slots] for cache in caches]
    narrow = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(written[0].float(), expected[1], rtol=narrow, atol=narrow)
    assert torch.equal(written[1], values.to(dtype))
    others = [i for i in range(64) if i not in slots.tolist()]
    assert all(cache.view(64, -1)[others].isnan().all() for cache in caches)
