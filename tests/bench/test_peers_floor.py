"""The bounds of bench/cpu_floor.py, on a model small enough to count by hand."""

from __future__ import annotations

from typing import Any

import pytest
from peers.floor import Shape, first_token, one_stream, throughput
from peers.workloads import Request

CONFIG: dict[str, Any] = {
    "hidden_size": 10,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 5,
    "intermediate_size": 20,
    "vocab_size": 100,
    "sliding_window": 2,
    "layer_types": ["sliding_attention", "full_attention"],
}
# A layer: queries and outputs 10 x 20 each, keys and values 10 x 5 each, three matrices 10 x 20.
BODY, HEAD = 2 * (2 * 200 + 2 * 50 + 3 * 200), 1000


def test_weights_are_counted() -> None:
    shape = Shape.of(CONFIG)
    assert (shape.body, shape.head, shape.windows, shape.query) == (BODY, HEAD, [2, None], 20)


def test_layers_without_types_see_everything() -> None:
    assert Shape.of(CONFIG | {"layer_types": None}).windows == [None, None]


@pytest.mark.parametrize(
    ("start", "end", "pairs"),
    [
        pytest.param(0, 1, 1 + 1, id="the first token looks at itself"),
        pytest.param(0, 3, (1 + 2 + 2) + (1 + 2 + 3), id="the window ends at two, the other layer sees all"),
        pytest.param(3, 4, 2 + 4, id="one further token"),
    ],
)
def test_attention_of_tokens(start: int, end: int, pairs: int) -> None:
    assert Shape.of(CONFIG).attention(start, end) == 4 * 20 * pairs


def test_bounds() -> None:
    shape, request = Shape.of(CONFIG), Request([1, 2, 3], max_tokens=2)
    # The second token's step reads the first one: four tokens go through the layers, two through the logits' matrix.
    operations = 2 * BODY * 4 + 2 * HEAD * 2 + shape.attention(0, 4)
    assert shape.operations(request) == operations
    assert throughput(shape, [request, request], 1e6) == pytest.approx(2 / (operations / 1e6))
    assert one_stream(shape, 4, 1e6) == pytest.approx(1e6 / (4 * (BODY + HEAD)))
    assert first_token(shape, request, 1e6) == pytest.approx((2 * BODY * 3 + 2 * HEAD + shape.attention(0, 3)) / 1e6)
