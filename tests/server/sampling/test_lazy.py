"""Logits that are computed only where they are asked for: the same tokens as from all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pagetide_server.engine.sampling.lazy import LazyLogits
from pagetide_server.engine.sampling.sampler import Sampler
from pagetide_server.engine.sequence import Sequence
from pagetide_server.model.head import Head
from pagetide_server.model.packed import PackedLinear, pack

VOCABULARY, SIZE = 301, 40
MakeSequence = Callable[..., Sequence]
GREEDY: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"top_k": 1},
    {"min_p": 1.0},
    {"temperature": 0.0, "ignore_eos": True, "max_tokens": 3},
]
# What a token depends on beside the most probable, or what else is to be told.
OTHERS: list[dict[str, Any]] = [
    {"seed": 7},
    {"seed": 8, "top_p": 0.9},
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 0.0, "repetition_penalty": 3.0},
    {"temperature": 0.0, "logit_bias": {5: 100.0}},
    {"temperature": 0.0, "min_tokens": 9},
    {"temperature": 0.0, "allowed_token_ids": (4, 9)},
]


class Watched(Head):
    """A head that counts the rows whose logits were written."""

    written = 0

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.written += len(hidden)
        return super().logits(hidden)


@pytest.fixture(params=["own", "int8"])
def head(request: Any, needs_compiler: None) -> Watched:
    weight = torch.randn(VOCABULARY, SIZE, generator=torch.Generator().manual_seed(0))
    made = Watched(PackedLinear(pack(weight, request.param), None), None)
    assert made.chooses
    made.prepare()
    return made


def check(head: Watched, hidden: torch.Tensor, sequences: list[Sequence]) -> int:
    """The rows whose logits were written to sample the same as from all logits."""
    sampler = Sampler(VOCABULARY, "cpu", eos_token_ids=frozenset({2}), seed=1)
    expected = sampler.sample(head.logits(hidden), sequences)
    head.written = 0
    assert sampler.sample(LazyLogits(hidden, head), sequences) == expected
    return head.written


def hidden_states(rows: int) -> torch.Tensor:
    return torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(rows))


def test_greedy_rows_do_without_their_logits(head: Watched, make: MakeSequence) -> None:
    sequences = [make(**params) for params in GREEDY * 3]
    assert check(head, hidden_states(len(sequences)), sequences) == 0


@pytest.mark.parametrize("params", OTHERS, ids=str)
def test_rows_that_want_more_get_theirs_alone(params: dict[str, Any], head: Watched, make: MakeSequence) -> None:
    sequences = [make(order=i, answer=[5, 9], **each) for i, each in enumerate([*GREEDY, params, *GREEDY])]
    assert check(head, hidden_states(len(sequences)), sequences) == 1


def test_a_mixed_batch_keeps_its_order(head: Watched, make: MakeSequence) -> None:
    mixed = [*GREEDY, *OTHERS, *GREEDY, *OTHERS]
    sequences = [make(order=i, answer=[5, 9], **params) for i, params in enumerate(mixed)]
    assert check(head, hidden_states(len(mixed)), sequences) == 2 * len(OTHERS)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_are_told(value: float, head: Watched, make: MakeSequence) -> None:
    sequences = [make(**params) for params in [*GREEDY, *OTHERS]]
    hidden = hidden_states(len(sequences))
    hidden[1, 3] = hidden[5, 7] = value
    check(head, hidden, sequences)
    errors = Sampler(VOCABULARY, "cpu", seed=1).sample(LazyLogits(hidden, head), sequences).errors
    assert set(errors) == {1, 5}


def test_no_rows_give_no_tokens(head: Watched) -> None:
    assert check(head, hidden_states(0), []) == 0


def test_another_width_is_refused(head: Watched, make: MakeSequence) -> None:
    with pytest.raises(ValueError, match=r"logits \(2, 301\), want \(1, 301\)"):
        Sampler(VOCABULARY, "cpu").sample(LazyLogits(hidden_states(2), head), [make()])


def test_logits_that_a_cap_bounds_are_written() -> None:
    weight = torch.randn(VOCABULARY, SIZE)
    # Two that differ may become equal, and then the first is taken.
    assert not Head(PackedLinear(pack(weight), None), 30.0).chooses
    assert not Head(PackedLinear(pack(weight), torch.randn(VOCABULARY)), None).chooses
    assert not Head(torch.nn.Linear(SIZE, VOCABULARY), None).chooses
