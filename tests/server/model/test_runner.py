"""The runner's greedy answers against transformers' own `generate`, token for token in float32."""

from __future__ import annotations

import random
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pagetide_server.engine.faults import DeviceLost
from pagetide_server.engine.sequence import Row, Sequence, Step
from pagetide_server.model import runner as runner_module
from pagetide_server.model.loader import LoadedModel

NEW_TOKENS = 24
# Shorter and longer than the tiny models' window of 24 and than a block, and a single token.
LENGTHS = (5, 1, 70, 33, 48)
KINDS = [
    "llama", "qwen2", "qwen2-sliding", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "olmo2", "stablelm", "granite",
    "starcoder2", "mixtral", "qwen3-moe", "gpt-neox", "cohere2",
]  # fmt: skip

Load = Callable[[str], LoadedModel]
Toy = types.SimpleNamespace


def make_prompts(lengths: tuple[int, ...] = LENGTHS, seed: int = 3) -> list[list[int]]:
    chance = random.Random(seed)
    return [[chance.randrange(8, 380) for _ in range(n)] for n in lengths]


@pytest.fixture(scope="module")
def expected(tiny_model: Callable[[str], Path], toy: Toy) -> Callable[[str], list[list[int]]]:
    """`expected(name)`: what `generate` answers to `make_prompts()`, computed once a kind."""
    made: dict[str, list[list[int]]] = {}

    def get(name: str) -> list[list[int]]:
        if name not in made:
            made[name] = toy.expected_answers(tiny_model(name), make_prompts(), NEW_TOKENS)
        return made[name]

    return get


@pytest.mark.parametrize("kind", KINDS)
class TestEqualsGenerate:
    def test_alone(self, kind: str, loaded_tiny: Load, expected: Callable, toy: Toy) -> None:
        found = [toy.answers(loaded_tiny(kind), [prompt], NEW_TOKENS)[0] for prompt in make_prompts()]
        assert found == expected(kind)
        # The reference itself must be worth comparing with.
        assert len({token for answer in found for token in answer}) > 20

    @pytest.mark.parametrize(
        ("block_size", "chunk"),
        [
            pytest.param(16, 10_000, id="whole prompts"),
            pytest.param(8, 7, id="chunks of 7"),
            pytest.param(32, 20, id="chunks of 20 in large blocks"),
        ],
    )
    def test_in_a_mixed_batch(
        self, kind: str, block_size: int, chunk: int, loaded_tiny: Load, expected: Callable, toy: Toy
    ) -> None:
        assert toy.answers(loaded_tiny(kind), make_prompts(), NEW_TOKENS, block_size, chunk) == expected(kind)


def test_sixteen_requests_of_different_lengths(tiny_model: Callable, loaded_tiny: Load, toy: Toy) -> None:
    prompts = make_prompts(tuple(range(2, 98, 6)), seed=9)
    assert len(prompts) == 16
    expected = toy.expected_answers(tiny_model("qwen3"), prompts, 12)
    assert toy.answers(loaded_tiny("qwen3"), prompts, 12) == expected
    assert toy.answers(loaded_tiny("qwen3"), prompts, 12, chunk=11) == expected


def test_a_prefix_computed_by_another_sequence_serves(loaded_tiny: Load, toy: Toy) -> None:
    loaded = loaded_tiny("gemma3")
    shared, (tail, other) = make_prompts((64,))[0], make_prompts((9, 5), seed=4)
    runner = toy.poisoned_runner(loaded, 16, 16)
    first = toy.make_sequence(shared + tail, [9, 3, 12, 5, 0])
    toy.settle(step := Step([toy.next_row(first, 100)]), runner.execute(step))
    second = toy.make_sequence(shared + other, [9, 3, 12, 5, 14])
    second.computed = 64
    toy.settle(step := Step([toy.next_row(second, 100)]), runner.execute(step))
    assert [first.tokens[-1:], second.tokens[-1:]] == toy.answers(loaded, [shared + tail, shared + other], 1)


def test_swapping_out_and_in_again_changes_no_answer(loaded_tiny: Load, toy: Toy) -> None:
    loaded, prompt = loaded_tiny("qwen2-sliding"), make_prompts((50,))[0]
    runner = toy.poisoned_runner(loaded, 12, 16, swap_blocks=6)
    sequence = toy.make_sequence(prompt, [7, 2, 9, 4])
    for turn in range(10):
        step = Step([toy.next_row(sequence, 1000)])
        if turn == 5:
            step.swap_out = [(7, 3), (2, 0), (9, 5), (4, 1)]
            step.swap_in = [(3, 0), (0, 11), (5, 1), (1, 8)]
            sequence.blocks = [0, 11, 1, 8]
        toy.settle(step, runner.execute(step))
        if turn == 5:
            for key, value in runner.caches:
                key[[7, 2, 9, 4]] = value[[7, 2, 9, 4]] = float("nan")
    assert [sequence.tokens[50:]] == toy.answers(loaded, [prompt], 10)


def test_a_swap_allocates_nothing(loaded_tiny: Load, toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loaded_tiny("llama")
    runner = toy.poisoned_runner(loaded, 4, 16, swap_blocks=2)
    runner.execute(Step([Row(toy.make_sequence([5] * 16, [3]), 0, 16, samples=True)]))

    def fails(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr(runner, "_allocate", fails)
    other = toy.make_sequence([5] * 16, [0])
    runner.execute(Step([Row(other, 0, 16, samples=True)], swap_out=[(3, 1)]))
    for mine, host in zip(runner.caches, runner.host_caches, strict=True):
        assert all(torch.equal(device[3], swapped[1]) for device, swapped in zip(mine, host, strict=True))


@pytest.mark.parametrize(
    ("step", "calls"),
    [
        pytest.param({}, [], id="nothing to move"),
        pytest.param({"copies": [(1, 2)]}, ["copy"], id="copies"),
        pytest.param({"swap_out": [(1, 0)]}, ["swap", "swap"], id="swapping"),
    ],
)
def test_blocks_of_all_layers_move_by_one_call(
    step: dict[str, list[tuple[int, int]]],
    calls: list[str],
    loaded_tiny: Load,
    toy: Toy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    monkeypatch.setattr(runner_module, "copy_blocks", lambda caches, pairs: made.append("copy"))
    monkeypatch.setattr(runner_module, "swap_blocks", lambda caches, pairs: made.append("swap"))
    runner = toy.poisoned_runner(loaded_tiny("llama"), 4, 16, swap_blocks=2)
    runner.execute(Step([Row(toy.make_sequence([5], [3]), 0, 1, samples=True)], **step))
    assert made == calls


def test_copying_a_block_parts_two_sequences(loaded_tiny: Load, toy: Toy) -> None:
    loaded, prompt = loaded_tiny("llama"), make_prompts((20,))[0]
    runner = toy.poisoned_runner(loaded, 8, 16)
    parent = toy.make_sequence(prompt, [3, 5])
    child = toy.make_sequence(prompt, [3, 5])
    step = Step([Row(parent, 0, 20, samples=True, siblings=(child,))])
    logits = runner.execute(step)
    assert logits.written().shape == (2, loaded.vocab_size)
    assert torch.equal(logits.written()[0], logits.written()[1])
    parent.tokens.append(100)
    child.tokens.append(200)
    child.blocks = [3, 6]
    step = Step([Row(parent, 20, 1, samples=True), Row(child, 20, 1, samples=True)], copies=[(5, 6)])
    after = runner.execute(step).written().argmax(-1).tolist()
    assert after == [toy.answers(loaded, [[*prompt, token]], 1)[0][0] for token in (100, 200)]


def test_logits_of_prompt_positions(loaded_tiny: Load, toy: Toy) -> None:
    loaded, prompt = loaded_tiny("granite"), make_prompts((30,))[0]
    with torch.inference_mode():
        # One pass over the whole prompt at once, as the reference for every position.
        whole = _all_logits(loaded, prompt, toy)
    runner = toy.poisoned_runner(loaded, 8, 16)
    asking = toy.make_sequence(prompt, [3, 5], prompt_logprobs=1)
    silent = toy.make_sequence(prompt[:7], [1])
    first = runner.execute(Step([Row(silent, 0, 7, samples=True), Row(asking, 0, 18, samples=False)]))
    second = runner.execute(Step([Row(asking, 18, 12, samples=True)]))
    assert set(first.prompt) == {1}
    assert first.written().shape[0] == second.written().shape[0] == 1
    got = torch.cat([first.prompt[1], second.prompt[0]])
    torch.testing.assert_close(got, whole, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(second.written()[0], whole[-1], rtol=1e-4, atol=1e-4)


def _all_logits(loaded: LoadedModel, prompt: list[int], toy: Toy) -> torch.Tensor:
    rows = []
    for end in range(1, len(prompt) + 1):
        runner = toy.poisoned_runner(loaded, 4, 16)
        sequence: Sequence = toy.make_sequence(prompt[:end], [2, 0])
        rows.append(runner.execute(Step([Row(sequence, 0, end, samples=True)])).written()[0])
    return torch.stack(rows)


def test_a_step_that_samples_nothing_gives_no_logits(loaded_tiny: Load, toy: Toy) -> None:
    loaded, prompt = loaded_tiny("llama"), make_prompts((30,))[0]
    runner = toy.poisoned_runner(loaded, 8, 16)
    sequence = toy.make_sequence(prompt, [1, 2])
    logits = runner.execute(Step([Row(sequence, 0, 16, samples=False)]))
    assert logits.written().shape == (0, loaded.vocab_size)
    assert logits.prompt == {}


def test_a_lost_device_is_told_from_a_failing_step(
    loaded_tiny: Load, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = toy.poisoned_runner(loaded_tiny("llama"), 8, 16)
    step = Step([Row(toy.make_sequence([5, 6], [1]), 0, 2, samples=True)])
    for raised, seen in (
        (torch.AcceleratorError("illegal access"), DeviceLost),
        (torch.OutOfMemoryError("full"), None),
    ):

        def fail(batch: object, raised: Exception = raised) -> torch.Tensor:
            raise raised

        monkeypatch.setattr(runner, "_move_blocks", fail)
        with pytest.raises(seen or type(raised), match=str(raised)):
            runner.execute(step)
