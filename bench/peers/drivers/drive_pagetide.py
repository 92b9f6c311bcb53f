"""Pagetide as a library, in one process. Options are engine settings."""

from __future__ import annotations

import os

from driving import WARM_UP, WARM_UP_TOKENS, Watch, peak_mib, read_job, write_result


def main() -> None:
    """Run the job."""
    job = read_job()
    from pagetide_server import LLM, SamplingParams

    def params(count: int) -> SamplingParams:
        return SamplingParams(temperature=0, ignore_eos=True, max_tokens=count)

    with LLM(job.model, log_level="warning", **job.options) as llm:
        llm.generate([[token % llm.vocab_size for token in WARM_UP]], params(WARM_UP_TOKENS), progress=False)
        watch = Watch()
        results = llm.generate(job.prompts, [params(n) for n in job.lengths], progress=False)
        watched = watch.stop()
    first = [r.metrics.first_token - r.metrics.arrival for r in results]
    write_result(job, watched, [r.outputs[0].token_ids for r in results], first, peak_mib(os.getpid()))


if __name__ == "__main__":
    main()
