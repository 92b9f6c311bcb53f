"""`pagetide bench`: what the server itself says of queue time."""

from __future__ import annotations

import pytest

from pagetide_server.bench.scrape import queue_time


def exposition(name: str, *models: tuple[str, list[int], float]) -> str:
    lines = [f"# TYPE {name} histogram"]
    for model, counts, seconds in models:
        for le, count in zip(("0.1", "0.2", "+Inf"), counts, strict=True):
            lines.append(f'{name}_bucket{{model_name="{model}",le="{le}"}} {count}')
        lines += [f'{name}_sum{{model_name="{model}"}} {seconds}', f'{name}_count{{model_name="{model}"}} {counts[-1]}']
    return "\n".join(lines) + "\n"


OURS, VLLM = "pagetide_request_queue_seconds", "vllm:request_queue_time_seconds"


@pytest.mark.parametrize("name", [OURS, VLLM])
def test_queue_time_is_what_came_between_two_scrapes(name):
    before = exposition(name, ("a", [5, 5, 5], 0.1))
    after = exposition(name, ("a", [5, 9, 10], 1.1), ("b", [5, 5, 5], 0.4))
    got = queue_time(before, after)
    # Five up to 0.1, four up to 0.2, one beyond.
    assert (got.count, got.mean) == (10, pytest.approx(0.14))
    assert (got.p50, got.p90, got.p99) == (pytest.approx(0.1), pytest.approx(0.2), pytest.approx(0.2))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("", "", id="no metrics"),
        pytest.param("# TYPE up gauge\nup 1\n", "# TYPE up gauge\nup 1\n", id="other metrics"),
        pytest.param(exposition(OURS, ("a", [1, 1, 1], 1)), exposition(OURS, ("a", [1, 1, 1], 1)), id="nothing came"),
    ],
)
def test_there_may_be_no_queue_time(before, after):
    assert queue_time(before, after) is None
