"""Pagetide as a library, in one process. Options are engine settings, and one more: `all_logits`.

By itself the engine finds a greedy token without computing all logits; a request with a bias (here of 0) needs them.
"""

from __future__ import annotations

import os

from driving import WARM_UP, WARM_UP_TOKENS, Watch, peak_mib, read_job, write_result


def main() -> None:
    """Run the job."""
    job = read_job()
    from pagetide_server import LLM, SamplingParams

    options = dict(job.options)
    bias = {0: 0.0} if options.pop("all_logits", False) else {}

    def params(count: int) -> SamplingParams:
        return SamplingParams(temperature=0, ignore_eos=True, max_tokens=count, logit_bias=bias)

    with LLM(job.model, log_level="warning", **options) as llm:
        llm.generate([[token % llm.vocab_size for token in WARM_UP]], params(WARM_UP_TOKENS), progress=False)
        watch = Watch()
        results = llm.generate(job.prompts, [params(n) for n in job.lengths], progress=False)
        watched = watch.stop()
    first = [r.metrics.first_token - r.metrics.arrival for r in results]
    write_result(job, watched, [r.outputs[0].token_ids for r in results], first, peak_mib(os.getpid()))


if __name__ == "__main__":
    main()
