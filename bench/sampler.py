"""What choosing tokens costs: `python bench/sampler.py [rows] [vocabulary]`; one core, random logits.

`PAGETIDE_KERNELS=torch` measures torch's way instead of the ops, OMP_NUM_THREADS=2 two cores.
Random logits are far flatter than a model's, which is the worst case for top-p.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import torch

from pagetide_server.engine.sampling.sampler import Sampler
from pagetide_server.engine.sequence import Sequence
from pagetide_server.wire.messages import AddRequest, SamplingParams

CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy, three penalties": {
        "temperature": 0.0, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1
    },
    "greedy, logprobs 5": {"temperature": 0.0, "logprobs": 5},
    "temperature": {"temperature": 0.7},
    "temperature, min_p 0.05": {"temperature": 0.7, "min_p": 0.05},
    "temperature, top_k 40": {"temperature": 0.7, "top_k": 40},
    "temperature 0.8, top_k 50, top_p 0.95": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "temperature, top_k 40, top_p 0.9": {"temperature": 0.7, "top_k": 40, "top_p": 0.9},
    "temperature, top_p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "temperature, top_p 0.2": {"temperature": 0.7, "top_p": 0.2},
}  # fmt: skip
ROUNDS = 5


def sequences(count: int, params: dict[str, Any]) -> list[Sequence]:
    """Sequences of a 1000-token prompt and 200 generated tokens."""
    made = []
    for i in range(count):
        request = AddRequest(
            request_id=str(i), prompt_token_ids=list(range(5, 1005)), params=SamplingParams(**params), arrival=0.0
        )
        made.append(Sequence(request, i))
        made[-1].tokens += [7] * 200
    return made


def best_ms(sampler: Sampler, logits: torch.Tensor, rows: list[Sequence]) -> float:
    """The quickest of some rounds, in milliseconds."""
    times = []
    for _ in range(ROUNDS):
        own = logits.clone()
        start = time.perf_counter()
        sampler.sample(own, rows)
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def main(rows: int = 64, vocabulary: int = 262_144) -> None:
    """Print one line a case."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0)) * 3
    sampler = Sampler(vocabulary, "cpu")
    print(f"{rows} rows of {vocabulary} logits")
    for name, params in CASES.items():
        print(f"{name:40}{best_ms(sampler, logits, sequences(rows, params)):9.1f} ms", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
