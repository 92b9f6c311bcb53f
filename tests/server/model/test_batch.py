"""A step becomes the tensors that it says."""

from __future__ import annotations

import types

import pytest
import torch

from pagetide_server.engine.sequence import Row, Step
from pagetide_server.model.batch import Batch, host_batch

CPU = torch.device("cpu")
Toy = types.SimpleNamespace


def test_a_mixed_step(toy: Toy) -> None:
    decode = toy.make_sequence(list(range(100, 120)), [7, 2, 5])
    chunk = toy.make_sequence(list(range(200, 230)), [9, 1, 3, 8])
    batch = host_batch(Step([Row(decode, 19, 1, samples=True), Row(chunk, 6, 12, samples=False)]), 8).to(CPU)
    assert batch.input_ids.tolist() == [119, *range(206, 218)]
    assert batch.positions.tolist() == [19, *range(6, 18)]
    assert batch.slots.tolist() == [5 * 8 + 3, 9 * 8 + 6, 9 * 8 + 7, *range(8, 16), 3 * 8, 3 * 8 + 1]
    # Blocks that a sequence holds in advance are no part of its table.
    assert batch.block_tables.tolist() == [[7, 2, 5], [9, 1, 3]]
    assert batch.context_lens.tolist() == [20, 18]
    assert batch.query_starts.tolist() == [0, 1, 13]
    assert (batch.max_query_len, batch.max_context_len) == (12, 20)
    assert (batch.logits_rows.tolist(), batch.sampling.tolist(), batch.prompt) == ([0], [0], {})
    assert {t.dtype for t in (batch.block_tables, batch.context_lens, batch.query_starts)} == {torch.int32}
    assert {t.dtype for t in (batch.input_ids, batch.positions, batch.slots, batch.logits_rows)} == {torch.int64}


def test_shorter_tables_are_filled_up(toy: Toy) -> None:
    short, long = toy.make_sequence([1, 2], [4]), toy.make_sequence([1] * 20, [3, 6, 5])
    batch = host_batch(Step([Row(short, 1, 1, samples=True), Row(long, 19, 1, samples=True)]), 8).to(CPU)
    assert batch.block_tables.tolist() == [[4, 0, 0], [3, 6, 5]]
    assert batch.sampling.tolist() == [0, 1]


def test_siblings_share_a_row_of_logits(toy: Toy) -> None:
    first, other = toy.make_sequence([1, 2, 3], [0]), toy.make_sequence([4, 5], [1])
    siblings = (toy.make_sequence([1, 2, 3], [0]), toy.make_sequence([1, 2, 3], [0]))
    step = Step([Row(other, 1, 1, samples=True), Row(first, 0, 3, samples=True, siblings=siblings)])
    batch = host_batch(step, 8).to(CPU)
    assert batch.logits_rows.tolist() == [0, 3]
    assert batch.sampling.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("answer", "start", "count", "samples", "rows", "sampling", "prompt"),
    [
        pytest.param([], 0, 4, False, [0, 1, 2, 3], [], {0: (0, 4)}, id="a chunk of the prompt"),
        pytest.param([], 3, 3, True, [0, 1, 2], [2], {0: (0, 3)}, id="the end of the prompt is sampled from as well"),
        pytest.param([7, 8], 2, 6, True, [5], [0], {}, id="recomputed with its answer: the prompt was scored before"),
        pytest.param([7, 8], 7, 1, True, [0], [0], {}, id="a decode"),
    ],
)
def test_prompt_positions_wanted(
    answer: list[int],
    start: int,
    count: int,
    samples: bool,
    rows: list[int],
    sampling: list[int],
    prompt: dict[int, tuple[int, int]],
    toy: Toy,
) -> None:
    sequence = toy.make_sequence([1, 2, 3, 4, 5, 6], [0], prompt_logprobs=0)
    sequence.tokens += answer
    batch = host_batch(Step([Row(sequence, start, count, samples)]), 8).to(CPU)
    assert _wanted(batch) == (rows, sampling, prompt)


def _wanted(batch: Batch) -> tuple[list[int], list[int], dict[int, tuple[int, int]]]:
    return batch.logits_rows.tolist(), batch.sampling.tolist(), batch.prompt


@pytest.mark.parametrize(
    ("start", "count", "problem"),
    [
        pytest.param(0, 0, "computes no token", id="nothing to compute"),
        pytest.param(2, 2, "computes 2 tokens from 2", id="more tokens than there are"),
    ],
)
def test_refuses_a_row_beyond_its_tokens(start: int, count: int, problem: str, toy: Toy) -> None:
    with pytest.raises(ValueError, match=problem):
        host_batch(Step([Row(toy.make_sequence([1, 2, 3], [0]), start, count, samples=True)]), 8).to(CPU)


def test_refuses_a_row_without_blocks(toy: Toy) -> None:
    with pytest.raises(ValueError, match="has 1 blocks and needs 2"):
        host_batch(Step([Row(toy.make_sequence([1] * 9, [0]), 0, 9, samples=True)]), 8).to(CPU)
