"""The four workloads, as token ids, so that no tokenizer is part of the comparison. Greedy, and nothing ends early."""

from __future__ import annotations

import dataclasses
import random

# Ids that every vocabulary of a real model has as ordinary tokens.
LOWEST, HIGHEST = 1000, 29_999


@dataclasses.dataclass(frozen=True)
class Request:
    """A prompt, and how many tokens must come behind it."""

    prompt: list[int]
    max_tokens: int


@dataclasses.dataclass(frozen=True)
class Workload:
    """What a workload is for, and its shape: `shared` tokens are the same at the beginning of all its prompts."""

    title: str
    requests: int
    shared: int
    own: tuple[int, int]
    answer: tuple[int, int]


WORKLOADS = {
    "W1": Workload("throughput: 64 requests, 32-256 tokens in, 32-128 out", 64, 0, (32, 256), (32, 128)),
    "W2": Workload("shared prefix: 64 requests, 512 common tokens + 32 own in, 32 out", 64, 512, (32, 32), (32, 32)),
    "W3": Workload("one stream: 128 tokens in, 128 out", 1, 0, (128, 128), (128, 128)),
    "W4": Workload("a long prompt: 4,096 tokens in, 32 out", 1, 0, (4096, 4096), (32, 32)),
}


def requests_of(name: str) -> list[Request]:
    """The requests of a workload: the same on every machine, and no common prefixes but those that it is about."""
    chance, shape = random.Random(f"pagetide {name}"), WORKLOADS[name]

    def ids(count: int) -> list[int]:
        return [chance.randint(LOWEST, HIGHEST) for _ in range(count)]

    shared = ids(shape.shared)
    return [
        Request(shared + ids(chance.randint(*shape.own)), chance.randint(*shape.answer)) for _ in range(shape.requests)
    ]
