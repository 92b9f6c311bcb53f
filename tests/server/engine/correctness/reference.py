"""Prompts, and what transformers says to them."""

from __future__ import annotations

import functools
import random
from typing import Any

import torch
from transformers import AutoModelForCausalLM

NEW_TOKENS = 20
LENGTHS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 23, 31, 32, 33, 47, 64, 65, 90, 121)
FEW = (1, 17, 33, 70)
FAMILIES = ("llama", "qwen3", "gemma3")

Answers = list[tuple[int, ...]]


def prompts_for(vocab_size: int, lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    """Prompts of many lengths around block borders; the last ones share a prefix of 40 tokens."""
    rng = random.Random(7)
    prompts = [[rng.randrange(3, vocab_size) for _ in range(n)] for n in lengths]
    shared = prompts[-1][:40]
    return prompts + [shared + [rng.randrange(3, vocab_size) for _ in range(n)] for n in (1, 8, 30)]


@functools.cache
def network(folder: str) -> Any:
    """transformers' own model."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@functools.cache
def expected(folder: str, lengths: tuple[int, ...] = LENGTHS) -> Answers:
    """What transformers generates for each prompt, one at a time."""
    model = network(folder)
    return [generated(model, prompt, NEW_TOKENS) for prompt in prompts_for(model.config.vocab_size, lengths)]


def generated(model: Any, prompt: list[int], new_tokens: int) -> tuple[int, ...]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False, eos_token_id=None
    )
    return tuple(out[0, len(prompt) :].tolist())
