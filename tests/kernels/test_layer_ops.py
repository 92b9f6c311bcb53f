"""The C++ ops between a layer's matrix products against their float32 references."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pagetide_kernels.cpu import layer_ops
from pagetide_kernels.reference.rms_norm import rms_norm
from pagetide_kernels.reference.rotary import rotate

pytestmark = pytest.mark.usefixtures("poisoned", "needs_compiler")

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
    gate, up = gate_up.double().chunk(2, -1)  # (float32's own tanh loses digits near -1)
    silu = torch.nn.functional.silu(gate)
    activated = silu if activation == "silu" else torch.nn.functional.gelu(gate, approximate="tanh")
    torch.testing.assert_close(layer_ops.gated(gate_up, activation).double(), activated * up, rtol=2e-6, atol=1e-11)


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


def rotation(**others: object) -> dict[str, object]:
    """Arguments that fit together: 3 tokens, 2 heads and 1 of the cache, of 4 numbers; the cache has 8 slots."""
    cos = torch.ones(3, 4)
    caches = (torch.zeros(2, 4, 1, 4), torch.zeros(2, 4, 1, 4))
    fits = {"qkv": torch.ones(3, 16), "heads": 2, "angles": (cos, cos), "norms": (None, None), "eps": 1e-6}
    return {**fits, "caches": caches, "slots": torch.tensor([0, 7, 2]), **others}


@pytest.mark.parametrize(
    ("others", "problem"),
    [
        pytest.param({"slots": torch.tensor([0, 8, 2])}, r"0\.\.7", id="a slot behind the cache"),
        pytest.param({"slots": torch.tensor([0, -1, 2])}, r"0\.\.7", id="a slot before the cache"),
        pytest.param({"slots": torch.tensor([0, 1])}, "slots must", id="too few slots"),
        pytest.param({"qkv": torch.ones(3, 12)}, "qkv must", id="no values"),
        pytest.param({"qkv": torch.ones(3, 16).half()}, "qkv must", id="another type"),
        pytest.param({"angles": (torch.ones(3, 4), torch.ones(3, 8)[:, ::2])}, "sin must", id="angles with gaps"),
        pytest.param({"angles": (torch.ones(3, 6), torch.ones(3, 6))}, "cannot be turned", id="too many angles"),
        pytest.param({"norms": (None, torch.ones(3))}, "a norm of heads must", id="a short norm"),
        pytest.param(
            {"caches": (torch.zeros(2, 4, 1, 4), torch.zeros(2, 4, 1, 2))}, "of one shape", id="caches of two shapes"
        ),
    ],
)
def test_a_rotation_that_does_not_fit_is_refused_and_changes_nothing(others: dict[str, object], problem: str) -> None:
    arguments = rotation(**others)
    with pytest.raises(ValueError, match=problem):
        layer_ops.rotate_and_cache(**arguments)  # type: ignore[arg-type]
    assert all((cache == 0).all() for cache in arguments["caches"])  # type: ignore[attr-defined]
    assert (arguments["qkv"] == 1).all()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        pytest.param(lambda x: layer_ops.rms_norm(x, torch.ones(4), 0.1), "weight must", id="a short norm"),
        pytest.param(lambda x: layer_ops.rms_norm(x.t(), torch.ones(3), 0.1), "hidden must", id="columns first"),
        pytest.param(lambda x: layer_ops.add_norm(x, x[:2], None, 0.1), "x must", id="too few rows to add"),
        pytest.param(lambda x: layer_ops.add_norm(x, x, None, 0.1, torch.ones(5)), "no out", id="no place for it"),
        pytest.param(lambda x: layer_ops.gated(x, "silu"), "gate_up must", id="no two halves"),
        pytest.param(lambda x: layer_ops.gated(torch.ones(3, 4), "relu"), "not 'relu'", id="an unknown activation"),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[torch.Tensor], object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        call(torch.ones(3, 5))
