"""transformers: `generate` on batches of up to 16 prompts, or with the option `continuous` its continuous batching.

`generate` computes a batch until its longest answer ends; only the tokens that were asked for count. Requests of like
length of answer share a batch, which is the best it can do.
"""

from __future__ import annotations

import os
import time
from typing import Any

from driving import WARM_UP, WARM_UP_TOKENS, Job, Watch, peak_mib, read_job, write_result

BATCH = 16

Answers = tuple[list[list[int]], list[float]]


def in_batches(model: Any, prompts: list[list[int]], lengths: list[int]) -> Answers:
    """(answers, seconds to the first token where a prompt is alone)"""
    import torch

    answers: list[list[int]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lengths.__getitem__)
    clock = _Clock()
    for at in range(0, len(order), BATCH):
        some = order[at : at + BATCH]
        width = max(len(prompts[i]) for i in some)
        ids = torch.tensor([[0] * (width - len(prompts[i])) + prompts[i] for i in some])
        mask = torch.tensor([[0] * (width - len(prompts[i])) + [1] * len(prompts[i]) for i in some])
        streamer = clock if len(prompts) == 1 else None
        made = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=max(lengths[i] for i in some), streamer=streamer
        )
        for i, row in zip(some, made[:, width:].tolist(), strict=True):
            answers[i] = row[: lengths[i]]
    return answers, clock.first


class _Clock:
    """A streamer that only looks when the first token comes (before it comes the prompt)."""

    def __init__(self) -> None:
        self._started, self._calls = time.perf_counter(), 0
        self.first: list[float] = []

    def put(self, value: Any) -> None:
        self._calls += 1
        if self._calls == 2:
            self.first = [time.perf_counter() - self._started]

    def end(self) -> None:
        """Nothing to do."""


def continuously(model: Any, prompts: list[list[int]], lengths: list[int]) -> Answers:
    """(answers, nothing: it does not tell when a first token came)"""
    manager = model.init_continuous_batching(generation_config=model.generation_config)
    manager.start()
    answers: dict[str, list[int]] = {}
    for number, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        manager.add_request(prompt, request_id=str(number), max_new_tokens=length)
    while len(answers) < len(prompts):
        output = manager.get_result(timeout=1)
        if output is None and not manager.is_running():
            raise SystemExit("continuous batching has stopped by itself")
        if output is not None and output.is_finished():
            answers[output.request_id] = output.generated_tokens
    manager.stop(block=True)
    return [answers[str(i)] for i in range(len(prompts))], []


def load(job: Job) -> Any:
    """The model; greedy, and no token ends an answer."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(job.threads)
    attention = "paged|sdpa" if job.options.get("continuous") else "sdpa"
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32, attn_implementation=attention).eval()
    settings = model.generation_config
    settings.do_sample, settings.pad_token_id = False, 0
    settings.eos_token_id = -1 if job.options.get("continuous") else None
    settings.max_new_tokens = max(job.lengths)
    return model


def main() -> None:
    """Run the job."""
    job = read_job()
    model = load(job)
    run = continuously if job.options.get("continuous") else in_batches
    in_batches_possible = run is in_batches
    if in_batches_possible:
        run(model, [WARM_UP], [WARM_UP_TOKENS])
    watch = Watch()
    answers, first = run(model, job.prompts, job.lengths)
    write_result(job, watch.stop(), answers, first, peak_mib(os.getpid()))


if __name__ == "__main__":
    main()
