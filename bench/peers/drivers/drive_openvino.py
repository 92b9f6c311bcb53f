"""OpenVINO GenAI with continuous batching, on an exported model. Option `precision`: of all arithmetic, else f32."""

from __future__ import annotations

import os
import time
from typing import Any

from driving import WARM_UP, WARM_UP_TOKENS, Job, Watch, peak_mib, read_job, write_result

CACHE_GIB = 3
# The best of 256, 512 and 2048 on the first workload.
BATCHED_TOKENS = 256


def pipeline(job: Job) -> Any:
    """The engine; prefix caching only where it is asked for, since it is off by default there."""
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GIB
    scheduler.max_num_batched_tokens = job.options.get("batched_tokens", BATCHED_TOKENS)
    scheduler.max_num_seqs = 64
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = job.options.get("prefix_caching", False)
    precision = job.options.get("precision", "f32")
    properties = {
        "KV_CACHE_PRECISION": precision,
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": job.threads,
    }
    return openvino_genai.ContinuousBatchingPipeline(job.model, scheduler, "CPU", properties)


def run(pipe: Any, prompts: list[list[int]], lengths: list[int], begin: int) -> tuple[list[list[int]], list[float]]:
    """(the answers, seconds to the first token of each); request ids count from `begin`."""
    import numpy
    import openvino
    import openvino_genai

    started = time.perf_counter()
    handles = []
    for number, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        config = openvino_genai.GenerationConfig(max_new_tokens=length, ignore_eos=True, do_sample=False)
        ids = openvino.Tensor(numpy.array([prompt], dtype=numpy.int64))
        handles.append(pipe.add_request(begin + number, ids, config))
    answers: list[list[int]] = [[] for _ in handles]
    first = [0.0] * len(handles)
    while pipe.has_non_finished_requests():
        pipe.step()
        now = time.perf_counter() - started
        for number, handle in enumerate(handles):
            if handle.can_read():
                for output in handle.read().values():
                    answers[number] += output.generated_ids
                first[number] = first[number] or now
    return answers, first


def main() -> None:
    """Run the job."""
    job = read_job()
    pipe = pipeline(job)
    run(pipe, [WARM_UP], [WARM_UP_TOKENS], 0)
    watch = Watch()
    answers, first = run(pipe, job.prompts, job.lengths, 1000)
    write_result(job, watch.stop(), answers, first, peak_mib(os.getpid()))


if __name__ == "__main__":
    main()
