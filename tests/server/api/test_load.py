"""Requests that are much work for the API process itself: nobody else may wait for them."""

from __future__ import annotations

import concurrent.futures as futures
import time

import httpx
import pytest

WORDS = "the old harbour town lies at the mouth of a slow river "


def worst_probe(server, path, body):
    """(the answer to `body`, the longest that /livez took meanwhile)"""
    with futures.ThreadPoolExecutor(1) as pool, httpx.Client(base_url=server.url, trust_env=False) as probe:
        job = pool.submit(server.post, path, **body)
        worst = 0.0
        while not job.done():
            worst = max(worst, probe.get("/livez", timeout=30).elapsed.total_seconds())
            time.sleep(0.01)
        return job.result(), worst


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        # The empty text at the end is refused, when all before it have been tokenized.
        pytest.param(
            "/v1/completions", {"prompt": [*[(WORDS * 80)[:4096]] * 1000, ""], "add_special_tokens": False}, 400,
            id="a thousand prompts, each of them short",
        ),
        pytest.param(
            "/v1/completions", {"prompt": "x", "max_tokens": 1, "bad_words": [str(i) + "x" * 250 for i in range(64)]},
            200, id="as many bad words as are allowed",
        ),
        pytest.param("/tokenize", {"prompt": WORDS * 80_000}, 200, id="a long text"),
    ],
)  # fmt: skip
def test_probes_are_quick_while_much_is_tokenized(launch, path, body, status):
    with launch("--max-model-len=8192") as server:
        answer, worst = worst_probe(server, path, body)
        assert answer.status_code == status, answer.text[:300]
        assert worst < 1
