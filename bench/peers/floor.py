"""The least time that a workload takes a machine of given speeds, for a model of given shape. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from .workloads import Request


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a dense decoder computes with: weights in its layers and in the logits' matrix, and its attention."""

    windows: list[int | None]
    body: int
    head: int
    query: int

    @classmethod
    def of(cls, config: dict[str, Any]) -> Shape:
        """From a config.json as transformers writes it."""
        hidden, layers = config["hidden_size"], config["num_hidden_layers"]
        query = config["num_attention_heads"] * config["head_dim"]
        key_value = config["num_key_value_heads"] * config["head_dim"]
        layer = hidden * (2 * query + 2 * key_value + 3 * config["intermediate_size"])
        kinds = config.get("layer_types") or ["full_attention"] * layers
        windows = [config["sliding_window"] if kind == "sliding_attention" else None for kind in kinds]
        return cls(windows, layers * layer, hidden * config["vocab_size"], query)

    def attention(self, start: int, end: int) -> float:
        """Operations of attention for the tokens from `start` to `end` of a sequence."""
        return sum(4.0 * self.query * _seen(start, end, window) for window in self.windows)

    def operations(self, request: Request) -> float:
        """All operations of a request; the logits of a prompt's last token alone are needed."""
        prompt, length = len(request.prompt), len(request.prompt) + request.max_tokens - 1
        return 2.0 * self.body * length + 2.0 * self.head * request.max_tokens + self.attention(0, max(prompt, length))


def _seen(start: int, end: int, window: int | None) -> float:
    """Pairs of a token and one before it, or itself, that it may look at."""
    return sum(min(i + 1, window or i + 1) for i in range(start, end))


def throughput(shape: Shape, requests: Sequence[Request], flops: float) -> float:
    """Output tokens per second if every operation ran at the speed of a matrix product."""
    return sum(r.max_tokens for r in requests) / (sum(map(shape.operations, requests)) / flops)


def one_stream(shape: Shape, bytes_a_weight: float, bandwidth: float) -> float:
    """Output tokens per second if a token cost nothing but reading all weights once."""
    return bandwidth / (bytes_a_weight * (shape.body + shape.head))


def first_token(shape: Shape, request: Request, flops: float) -> float:
    """Seconds for a prompt."""
    count = len(request.prompt)
    return (2.0 * shape.body * count + 2.0 * shape.head + shape.attention(0, count)) / flops
