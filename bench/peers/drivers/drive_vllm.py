"""vLLM as a library, with prefix caching. Eager: compiling takes minutes here, for nothing that shows on a CPU.

Option `dtype`: of weights, KV cache and arithmetic, by default float32.
"""

from __future__ import annotations

import os

from driving import WARM_UP, WARM_UP_TOKENS, Watch, peak_mib, read_job, write_result


def main() -> None:
    """Run the job. vLLM starts a process of its own, so that this must not run when it imports this file again."""
    job = read_job()
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE="2",
        VLLM_CPU_OMP_THREADS_BIND=f"0-{job.threads - 1}",
        VLLM_NO_USAGE_STATS="1",
        HF_HUB_OFFLINE="1",
    )
    from vllm import LLM, SamplingParams

    def params(count: int) -> SamplingParams:
        return SamplingParams(temperature=0, ignore_eos=True, max_tokens=count)

    llm = LLM(
        job.model,
        dtype=job.options.get("dtype", "float32"),
        max_model_len=8192,
        enforce_eager=True,
        enable_prefix_caching=True,
        disable_log_stats=False,
    )
    llm.generate([{"prompt_token_ids": WARM_UP}], params(WARM_UP_TOKENS), use_tqdm=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in job.prompts]
    watch = Watch()
    results = llm.generate(prompts, [params(n) for n in job.lengths], use_tqdm=False)
    watched = watch.stop()
    first = [r.metrics.first_token_latency for r in results if r.metrics is not None]
    write_result(job, watched, [list(r.outputs[0].token_ids) for r in results], first, peak_mib(os.getpid()))


if __name__ == "__main__":
    main()
