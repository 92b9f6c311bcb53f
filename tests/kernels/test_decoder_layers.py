"""All decoder layers by one call, against the same ops called one by one: equal to the last bit."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pagetide_kernels.cpu import decoder_layers, layer_ops
from pagetide_kernels.cpu.decoder_layers import DecoderLayers, Layer, Projection
from pagetide_kernels.packed_linear import linear, pack
from pagetide_kernels.paged_attention import paged_attention

pytestmark = pytest.mark.usefixtures("poisoned", "needs_compiler")

SIZE, INNER, HEADS, KV_HEADS, DIM, EPS = 72, 100, 4, 2, 24, 1e-5
# (tokens in the cache, of which are query rows): decodes, a chunk with a past, and whole prompts.
MIXED = [(9, 1), (40, 1), (33, 20), (5, 5), (1, 1)]
Tensors = dict[str, torch.Tensor]
MakeCase = Callable[..., Tensors]


def a_projection(rows: int, columns: int, dtype: torch.dtype, kind: str, biased: bool) -> Projection:
    weight = (torch.randn(rows, columns) / columns**0.5).to(dtype)
    return Projection(pack(weight, kind), torch.randn(rows) if biased else None)


def a_layer(dtype: torch.dtype = torch.float32, kind: str = "own", twice: bool = False, **others: Any) -> Layer:
    """`twice`: with norms behind attention and MLP and of heads; else with biases."""
    made = {
        name: a_projection(*shape, dtype, kind, biased=not twice)
        for name, shape in {
            "qkv": ((HEADS + 2 * KV_HEADS) * DIM, SIZE),
            "out": (SIZE, HEADS * DIM),
            "gate_up": (2 * INNER, SIZE),
            "down": (SIZE, INNER),
        }.items()
    }
    own = (lambda n: torch.randn(n)) if twice else (lambda n: None)
    settings = {
        "activation": "gelu_tanh" if twice else "silu",
        "sliding_window": 12 if twice else None,
        "soft_cap": 3.0 if twice else None,
        "first_angle": 20 if twice else 0,
        "pairs": DIM // 2 if twice else 10,
    }
    return Layer(
        **made,
        before_attention=torch.randn(SIZE),
        behind_attention=own(SIZE),
        before_mlp=torch.randn(SIZE),
        behind_mlp=own(SIZE),
        head_norms=(own(DIM), own(DIM)),
        eps=EPS,
        heads=HEADS,
        scale=DIM**-0.5,
        **(settings | others),  # type: ignore[arg-type]
    )


def one_by_one(layers: list[Layer], norm: torch.Tensor, caches: Any, step: Tensors) -> torch.Tensor:
    """What `DecoderLayers.run` returns, by the ops that are tested by themselves."""
    hidden = step["hidden"].clone()
    tables = (step["block_tables"], step["context_lens"], step["query_starts"])
    longest = int(step["query_starts"].diff().max()), int(step["context_lens"].max())
    for layer, (keys, values) in zip(layers, caches, strict=True):
        x = layer_ops.rms_norm(hidden, layer.before_attention, EPS)
        qkv = linear(x, layer.qkv.weight, layer.qkv.bias)
        angles = step["angles"][:, layer.first_angle :][:, : 2 * layer.pairs].split(layer.pairs, dim=1)
        whole = tuple(torch.cat((part, part), dim=1) for part in angles)
        layer_ops.rotate_and_cache(qkv, HEADS, whole, layer.head_norms, EPS, (keys, values), step["slots"])  # type: ignore[arg-type]
        query = qkv[:, : HEADS * DIM].view(-1, HEADS, DIM)
        out = paged_attention(
            query, keys, values, *tables, *longest, layer.scale, layer.sliding_window, layer.soft_cap
        )  # fmt: skip
        x = linear(out.view(len(out), -1), layer.out.weight, layer.out.bias)
        layer_ops.add_norm(hidden, x, layer.behind_attention, EPS, layer.before_mlp, x)
        gated = layer_ops.gated(linear(x, layer.gate_up.weight, layer.gate_up.bias), layer.activation)
        layer_ops.add_norm(hidden, linear(gated, layer.down.weight, layer.down.bias), layer.behind_mlp, EPS)
    return layer_ops.rms_norm(hidden[step["rows"]], norm, EPS)


def a_step(make_case: MakeCase, batch: list[tuple[int, int]], rows: list[int], count: int, dtype: torch.dtype) -> Any:
    """(what `run` takes, caches of `count` layers)"""
    case = make_case(batch, HEADS, KV_HEADS, DIM, 4, dtype=dtype)
    tables, starts = case["block_tables"].tolist(), [context - new for context, new in batch]
    slots = [
        tables[s][position // 4] * 4 + position % 4
        for s, (context, _) in enumerate(batch)
        for position in range(starts[s], context)
    ]
    step = {
        "hidden": torch.randn(len(slots), SIZE),
        "angles": torch.randn(len(slots), 20 + DIM),
        "slots": torch.tensor(slots),
        **{name: case[name] for name in ("block_tables", "context_lens", "query_starts")},
        "rows": torch.tensor(rows, dtype=torch.int64),
    }
    return step, [(case["key_cache"].clone(), case["value_cache"].clone()) for _ in range(count)]


def copied(caches: Any) -> Any:
    return [(keys.clone(), values.clone()) for keys, values in caches]


@pytest.mark.parametrize("cache", [torch.float32, torch.float16, torch.bfloat16], ids=lambda t: f"cache of {t}")
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [(torch.float32, "own"), (torch.float16, "own"), (torch.bfloat16, "own"), (torch.float32, "int8")],
    ids=["float32", "float16", "bfloat16", "int8"],
)
@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        pytest.param(MIXED, [0, 1, 21, 26, 27], id="some rows of a mixed batch"),
        pytest.param([(7, 1)], [0], id="one decode"),
        pytest.param([(900, 900)], list(range(890, 900)), id="more rows than go on together"),
        pytest.param([(30, 12)], [], id="a part of a prompt"),
    ],
)
def test_it_equals_the_ops_one_by_one(
    make_case: MakeCase, batch: Any, rows: list[int], dtype: torch.dtype, kind: str, cache: torch.dtype
) -> None:
    layers, norm = [a_layer(dtype, kind), a_layer(dtype, kind, twice=True), a_layer(dtype, kind)], torch.randn(SIZE)
    step, caches = a_step(make_case, batch, rows, len(layers), cache)
    own = copied(caches)
    expected = one_by_one(layers, norm, own, step)
    got = DecoderLayers(layers, norm, EPS, caches).run(**step)
    assert got.isfinite().all()
    assert torch.equal(got, expected)
    for mine, its in zip(own, caches, strict=True):
        assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(mine, its, strict=True))


def test_the_memory_between_the_ops_is_freed_with_its_layers(
    make_case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[int] = []
    free = decoder_layers._free_space
    monkeypatch.setattr(decoder_layers, "_free_space", lambda space: (freed.append(space), free(space)))
    step, caches = a_step(make_case, [(9, 2)], [1], 1, torch.float32)
    layers, others = (DecoderLayers([a_layer()], torch.ones(SIZE), EPS, caches) for _ in range(2))
    own, theirs = layers._space, others._space
    layers.run(**copy.deepcopy(step))
    expected = others.run(**copy.deepcopy(step))
    assert freed == []
    del layers
    assert freed == [own] != [theirs]
    assert torch.equal(others.run(**copy.deepcopy(step)), expected)


@pytest.mark.parametrize(
    ("others", "problem"),
    [
        pytest.param({"slots": torch.tensor([0, 10_000])}, r"slots must lie in 0\.\.", id="a slot behind the caches"),
        pytest.param({"slots": torch.tensor([0])}, "slots must be", id="too few slots"),
        pytest.param({"block_tables": torch.full((1, 3), 99, dtype=torch.int32)}, "do not exist", id="a strange block"),
        pytest.param({"query_starts": torch.tensor([0, 3], dtype=torch.int32)}, "do not exist", id="too many queries"),
        pytest.param({"rows": torch.tensor([2])}, r"rows must lie in 0\.\.1", id="a row behind the last"),
        pytest.param({"rows": torch.tensor([-1])}, r"rows must lie in 0\.\.1", id="a row before the first"),
        pytest.param({"hidden": torch.ones(2, SIZE + 1)}, "hidden must be", id="another width"),
        pytest.param({"angles": torch.ones(2, 10)}, "angles must be", id="too few angles"),
        pytest.param({"context_lens": torch.tensor([9])}, "context_lens must be", id="another type"),
    ],
)
def test_a_step_that_does_not_fit_is_refused(make_case: MakeCase, others: Tensors, problem: str) -> None:
    layers = [a_layer()]
    step, caches = a_step(make_case, [(9, 2)], [1], 1, torch.float32)
    with pytest.raises(ValueError, match=problem):
        DecoderLayers(layers, torch.ones(SIZE), EPS, caches).run(**(step | others))


@pytest.mark.parametrize(
    ("others", "problem"),
    [
        pytest.param({"activation": "relu"}, "not 'relu'", id="an unknown activation"),
        pytest.param({"heads": 6}, "qkv must be panels", id="more heads than columns"),
        pytest.param({"pairs": DIM}, "do not fit", id="more pairs than a head has"),
        pytest.param({"before_mlp": torch.ones(3)}, "a norm must be", id="a short norm"),
        pytest.param({"head_norms": (None, torch.ones(3))}, "a norm of heads must be", id="a short norm of heads"),
    ],
)
def test_layers_that_do_not_fit_are_refused(make_case: MakeCase, others: dict[str, Any], problem: str) -> None:
    _, caches = a_step(make_case, [(9, 2)], [1], 1, torch.float32)
    layer = dataclasses.replace(a_layer(), **others)
    with pytest.raises(ValueError, match=problem):
        DecoderLayers([layer], torch.ones(SIZE), EPS, caches)
