"""A toy scheduler for the runner, and what transformers' own `generate` answers."""

from __future__ import annotations

import os
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pagetide_server.engine.sampling.lazy import LazyLogits
from pagetide_server.engine.sequence import Row, Sequence, Step
from pagetide_server.model.loader import LoadedModel, load
from pagetide_server.model.runner import Runner, StepLogits
from pagetide_server.wire.messages import AddRequest, SamplingParams
from pagetide_spec.config import EngineConfig


def make_sequence(prompt: list[int], blocks: list[int], **params: Any) -> Sequence:
    request = AddRequest(
        request_id=str(blocks[0]), prompt_token_ids=prompt, params=SamplingParams(**params), arrival=0.0
    )
    sequence = Sequence(request, arrival_order=0)
    sequence.blocks = blocks
    return sequence


def poisoned_runner(loaded: LoadedModel, blocks: int, block_size: int, swap_blocks: int = 0) -> Runner:
    """A runner whose fresh cache and swap space hold NaN, so that nothing unwritten can be read unseen."""
    runner = Runner(loaded, blocks, swap_blocks, block_size)
    for cache in (*runner.caches, *runner.host_caches):
        for part in cache:
            part.fill_(float("nan"))
    return runner


def settle(step: Step, logits: StepLogits) -> None:
    """Append the greedy token to each sampling sequence, and count what was computed."""
    best = logits.written().argmax(-1).tolist()
    if isinstance(logits.sampling, LazyLogits):
        assert logits.sampling.argmax()[0] == best
    for sequence, token in zip(step.sampling(), best, strict=True):
        sequence.tokens.append(token)
    for row in step.rows:
        row.sequence.computed = row.start + row.count


def next_row(sequence: Sequence, chunk: int) -> Row:
    """The next up to `chunk` tokens that are not computed yet."""
    todo = len(sequence.tokens) - sequence.computed
    return Row(sequence, sequence.computed, min(todo, chunk), samples=todo <= chunk)


def answers(
    loaded: LoadedModel, prompts: list[list[int]], new_tokens: int, block_size: int = 16, chunk: int = 10_000
) -> list[list[int]]:
    """Greedy answers of all prompts in one batch with fixed, scattered block tables; a prompt joins at each step."""
    need = [-(-(len(p) + new_tokens) // block_size) for p in prompts]
    numbers = list(range(sum(need) + 3))
    random.Random(5).shuffle(numbers)
    runner = poisoned_runner(loaded, len(numbers), block_size)
    sequences = [make_sequence(p, [numbers.pop() for _ in range(n)]) for p, n in zip(prompts, need, strict=True)]
    for turn in range(10_000):
        running = [s for s in sequences[: turn + 1] if s.generated < new_tokens]
        if not running and turn >= len(sequences):
            return [s.tokens[s.prompt_len :] for s in sequences]
        if running:
            # Decodes first, as the scheduler does.
            rows = sorted((next_row(s, chunk) for s in running), key=lambda row: row.count > 1)
            step = Step(rows=rows)
            settle(step, runner.execute(step))
    raise AssertionError("the toy scheduler did not come to an end")


# What `generate` has answered: modules ask the same of the same folders, which nobody changes.
EXPECTED: dict[tuple[Path, str, int], list[list[int]]] = {}


def expected_answers(folder: Path, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
    """What transformers' own `generate` answers in float32, one prompt at a time; computed once a test run."""
    key = (folder, str(prompts), new_tokens)
    if key not in EXPECTED:
        EXPECTED[key] = generated(folder, prompts, new_tokens)
    return EXPECTED[key]


def generated(folder: Path, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    network.generation_config.eos_token_id = None
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        out = network.generate(ids, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False)
        found.append(out[0, len(prompt) :].tolist())
    return found


@pytest.fixture(scope="session")
def toy() -> types.SimpleNamespace:
    """This file's functions; test modules cannot import each other."""
    functions = (make_sequence, poisoned_runner, settle, next_row, answers, expected_answers)
    return types.SimpleNamespace(**{f.__name__: f for f in functions})


@pytest.fixture(scope="session")
def loaded_tiny(tiny_model: Callable[[str], Path]) -> Callable[..., LoadedModel]:
    """`loaded_tiny(name, **settings)`: a tiny model loaded by us, once a test run for each choice of kernels."""
    made: dict[object, LoadedModel] = {}

    def get(name: str, **settings: Any) -> LoadedModel:
        key = (name, os.environ.get("PAGETIDE_KERNELS"), *sorted(settings.items()))
        if key not in made:
            made[key] = load(EngineConfig(model=str(tiny_model(name)), **settings))
        return made[key]

    return get


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What transformers keeps of models' code, which lies in the user's home otherwise and stays importable."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
