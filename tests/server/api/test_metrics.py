"""/metrics: names, and counts that are right after whatever happened."""

from __future__ import annotations

import math
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagetide_server.api.histogram import Histogram
from pagetide_server.api.metrics import ServerMetrics
from pagetide_server.api.record import Record
from pagetide_server.wire.messages import EngineStats, Ready, SequenceOutput, StepOutput
from pagetide_spec.metrics import SERVER_METRICS, VLLM_METRICS

# Of fake_core.py.
FAIL = 381
COUNTERS = ("prompt_tokens_total", "generation_tokens_total", "prefills_total", "decodes_total")
HISTOGRAMS = (
    "request_queue_seconds", "time_to_first_token_seconds", "inter_token_seconds", "request_seconds",
    "request_prefill_seconds", "request_decode_seconds", "request_prompt_tokens", "request_generation_tokens",
)  # fmt: skip


def totals(server):
    found = {name: server.metric(f"pagetide_{name}") for name in COUNTERS}
    found |= {name: server.metric(f"pagetide_{name}_count") for name in HISTOGRAMS}
    for reason in ("stop", "length", "abort", "error"):
        found[reason] = server.metric("pagetide_requests_total", finish_reason=reason)
    return found


def change(server, before):
    """What grew since `before`."""
    after = totals(server)
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


def families(server):
    return list(text_string_to_metric_families(server.http.get("/metrics").text))


def names_of(found):
    return {f.name for f in found} | {f.name + "_total" for f in found if f.type == "counter"}


def test_every_metric_of_the_contract_is_there_and_no_other(server):
    server.complete(prompt="x", max_tokens=2)
    found = families(server)
    assert {m.full_name for m in SERVER_METRICS.values()} <= names_of(found)
    assert {f.name.removesuffix("_total") for f in found} == {
        m.full_name.removesuffix("_total") for m in SERVER_METRICS.values()
    }
    assert all(f.documentation for f in found)
    assert {s.labels["model_name"] for f in found for s in f.samples} == {"tiny"}


def test_vllms_names_carry_the_same_facts(launch):
    with launch("--metrics-compat=vllm") as server:
        server.complete(prompt="The old harbour", max_tokens=3)
        found = families(server)
        assert set(VLLM_METRICS) <= names_of(found)
        assert server.metric("vllm:generation_tokens_total") == server.metric("pagetide_generation_tokens_total") == 3
        assert server.metric("vllm:request_success_total", finished_reason="length") == 1
        assert server.metric("vllm:num_preemptions_total") == 0
        assert server.metric("vllm:e2e_request_latency_seconds_count") == 1
        (cache,) = [s.labels for f in found for s in f.samples if f.name == "vllm:cache_config_info"]
        assert int(cache["num_gpu_blocks"]) * int(cache["block_size"]) == server.metric("pagetide_kv_capacity_tokens")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_request_is_counted_once_whatever_n(server, stream):
    before = totals(server)
    server.post("/v1/completions", prompt=[300] * 7, n=3, max_tokens=5, stream=stream)
    assert change(server, before) == {
        "prompt_tokens_total": 7, "generation_tokens_total": 15, "prefills_total": 1, "decodes_total": 12, "length": 1,
        "inter_token_seconds": 12, **dict.fromkeys(set(HISTOGRAMS) - {"inter_token_seconds"}, 1),
    }  # fmt: skip


def test_the_times_of_a_request_add_up(launch):
    parts = ("request_queue_seconds", "request_prefill_seconds", "request_decode_seconds")
    with launch() as server:
        server.complete(prompt="The old harbour", max_tokens=4)
        sums = {name: server.metric(f"pagetide_{name}_sum") for name in (*parts, "request_seconds")}
    assert all(seconds > 0 for seconds in sums.values())
    assert sum(sums[name] for name in parts) <= sums["request_seconds"]


def test_a_batch_is_several_requests(server):
    before = totals(server)
    server.complete(prompt=[[300] * 3, [301] * 4], max_tokens=1)
    found = change(server, before)
    assert (found["prompt_tokens_total"], found["prefills_total"], found["length"]) == (7, 2, 2)
    assert "decodes_total" not in found


def test_tokens_behind_a_stop_string_are_not_counted(server):
    text = server.complete(prompt="The old", max_tokens=12)["choices"][0]["text"]
    before = totals(server)
    usage = server.complete(prompt="The old", max_tokens=12, stop=text[6:9])["usage"]
    found = change(server, before)
    assert usage["completion_tokens"] < 12
    assert found["generation_tokens_total"] == usage["completion_tokens"]
    assert found["stop"] == 1


@pytest.mark.parametrize(
    "request_fields",
    [
        pytest.param({"temperature": -1}, id="a value out of range"),
        pytest.param({"model": "other"}, id="another model"),
        pytest.param({"prompt": [300] * 600}, id="a prompt over the window"),
        pytest.param({"guided_grammar": "wrong"}, id="refused by the engine"),
    ],
)
def test_refused_requests_count_nothing(server, request_fields):
    before = totals(server)
    assert server.post("/v1/completions", **{"prompt": "x", **request_fields}).status_code in (400, 404)
    assert change(server, before) == {}


def test_failed_requests_are_counted_as_errors(server):
    before = totals(server)
    server.post("/v1/completions", prompt=[FAIL, 300, 300])
    found = change(server, before)
    assert found["error"] == 1
    assert found["generation_tokens_total"] == found["decodes_total"] + 1


def test_http_requests_are_counted_by_route_and_code(server):
    def count(route, code):
        return server.metric("pagetide_http_requests_total", route=route, code=str(code))

    rows = [("/v1/completions", 200), ("/v1/completions", 400), ("/v1/models/{name:path}", 404), ("unmatched", 404)]
    before = [count(*row) for row in rows]
    server.complete(prompt="x", max_tokens=1)
    server.post("/v1/completions", prompt=[])
    server.http.get("/v1/models/other")
    server.http.get("/what/ever")
    assert [count(*row) - b for row, b in zip(rows, before, strict=True)] == [1, 1, 1, 1]


def test_requests_that_are_refused_at_the_door_are_counted_by_their_route(launch):
    with launch("--api-key", "secret", "--max-body-mib", "0.001") as server:
        server.post("/v1/completions", prompt="x")
        server.http.get("/v1/models/other")
        server.http.post("/v1/chat/completions", content=b" " * 2000, headers={"authorization": "Bearer secret"})
        server.http.get("/what/ever")
        rows = [("/v1/completions", 401), ("/v1/models/{name:path}", 401), ("/v1/chat/completions", 413)]
        for route, code in [*rows, ("unmatched", 401)]:
            assert server.metric("pagetide_http_requests_total", route=route, code=str(code)) == 1


def test_the_end_of_a_histogram_is_its_count(server):
    for family in families(server):
        if family.type != "histogram":
            continue
        buckets = [(float(s.labels["le"]), s.value) for s in family.samples if s.name.endswith("_bucket")]
        (count,) = [s.value for s in family.samples if s.name.endswith("_count")]
        assert buckets == sorted(buckets)
        assert buckets[-1] == (math.inf, count)


def test_a_scrape_is_quick_while_tokens_stream(server):
    with httpx.stream(
        "POST", server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 300, "n": 16, "stream": True}
    ):
        assert server.http.get("/metrics").elapsed.total_seconds() < 1


@pytest.mark.parametrize(
    ("value", "bucket"),
    [(0, "1.0"), (1, "1.0"), (1.5, "2.0"), (2, "2.0"), (3, "+Inf")],
    ids=["nothing", "on the first bound", "between", "on the last bound", "above"],
)
def test_a_histogram_counts_up_to_and_with_its_bounds(value, bucket):
    histogram = Histogram((1, 2))
    histogram.observe(value, 2)
    rows = dict(histogram.buckets())
    assert rows[bucket] == rows["+Inf"] == 2
    assert [v for k, v in rows.items() if k != "+Inf" and float(k) < value] == [0] * sum(b < value for b in (1, 2))
    assert histogram.total == 2 * value


def test_ratios_look_at_recent_time_only():
    metrics = ServerMetrics("m", "1")
    began = metrics._cache[0][0]

    def report(seconds, queries, hits):
        stats = EngineStats(prefix_query_tokens=queries, prefix_hit_tokens=hits)
        metrics.step(StepOutput(outputs=[], stats=stats, time=began + seconds))

    def ratio(seconds):
        metrics._read_recent(began + seconds)
        return metrics._values["prefix_cache_hit_ratio"][()]

    report(2, 100, 50)
    assert ratio(3) == 0.5
    report(40, 200, 150)
    assert ratio(41) == 0.75
    assert ratio(70) == 1.0
    assert ratio(200) == 0


def test_what_block_sizes_would_save_is_exported():
    metrics = ServerMetrics("tiny", "1.0")
    stats = EngineStats(prefix_tail_tokens=12, prefix_shareable_tokens={8: 40, 16: 32})
    metrics.step(StepOutput(outputs=[], stats=stats, time=0.0))
    text = metrics.render().decode()
    assert 'pagetide_prefix_tail_tokens_total{model_name="tiny"} 12.0' in text
    assert 'pagetide_prefix_shareable_tokens_total{block_size="8",model_name="tiny"} 40.0' in text
    assert 'pagetide_prefix_shareable_tokens_total{block_size="16",model_name="tiny"} 32.0' in text


@pytest.mark.parametrize(
    ("queued", "oldest", "expected"),
    [
        pytest.param(None, None, 0, id="nothing is known"),
        pytest.param(7.5, None, 7.5, id="as long as the newest request waited"),
        pytest.param(7.5, 10, 10, id="as long as the oldest already waits"),
        pytest.param(7.5, 2, 7.5, id="the longer of both"),
    ],
)
def test_how_long_a_request_may_wait(queued, oldest, expected):
    metrics, now = ServerMetrics("m", "1"), 1000.0
    if queued is not None:
        metrics.prefilled(5, queued)
    stats = EngineStats(oldest_arrival=None if oldest is None else now - oldest)
    metrics.step(StepOutput(outputs=[], stats=stats, time=now))
    assert metrics.expected_wait(now) == expected


READY = Ready(
    max_model_len=64, vocab_size=9, eos_token_ids=[1], max_num_seqs=8, max_num_batched_tokens=100, block_size=16,
    num_blocks=10, num_swap_blocks=4, dtype="float32", device="cpu", attention="x",
)  # fmt: skip


def scraped(metrics):
    """Every sample without its common label: {"name" or 'name{label="value"}': value}."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = ",".join(f'{k}="{v}"' for k, v in sample.labels.items() if k != "model_name")
            name = sample.name.removeprefix("pagetide_")
            found[f"{name}{{{labels}}}" if labels else name] = sample.value
    return found


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        pytest.param({}, {"batch_utilization_ratio": 0, "kv_cache_utilization_ratio": 0}, id="nothing runs"),
        pytest.param({"running": 2, "admissible_seqs": 8}, {"batch_utilization_ratio": 0.25}, id="two of eight run"),
        pytest.param(
            {"running": 9, "admissible_seqs": 8}, {"batch_utilization_ratio": 1}, id="never more than all of them"
        ),
        pytest.param({"running": 1, "admissible_seqs": 0}, {"batch_utilization_ratio": 1}, id="nothing more would fit"),
        pytest.param(
            {"preemptions_swap": 3, "preemptions_recompute": 5},
            {'preemptions_total{mode="swap"}': 3, 'preemptions_total{mode="recompute"}': 5},
            id="preemptions by mode",
        ),
        pytest.param(
            {"swapped_out_blocks": 7, "swapped_in_blocks": 4},
            {'swapped_blocks_total{direction="out"}': 7, 'swapped_blocks_total{direction="in"}': 4},
            id="swapped blocks by direction",
        ),
        pytest.param(
            {"blocks_free": 2, "blocks_cached": 3, "blocks_used": 5, "blocks_swapped": 4},
            {
                'kv_blocks{state="free"}': 2, 'kv_blocks{state="cached"}': 3, 'kv_blocks{state="used"}': 5,
                'kv_blocks{state="swapped"}': 4, "kv_cache_utilization_ratio": 0.5,
            },
            id="blocks by state; the swapped ones are no part of the cache",
        ),
        pytest.param(
            {"block_allocations": 6, "block_allocation_failures": 1, "steps": 9},
            {"kv_block_allocations_total": 6, "kv_block_allocation_failures_total": 1, "engine_steps_total": 9},
            id="totals",
        ),
    ],
)  # fmt: skip
def test_a_report_of_the_engine_becomes_metrics(stats, expected):
    metrics = ServerMetrics("m", "1")
    metrics.step(StepOutput(outputs=[], stats=EngineStats(**stats), time=time.monotonic()))
    assert scraped(metrics).items() >= expected.items()


@pytest.mark.parametrize(
    ("steps", "ratio"),
    [
        pytest.param([], 0, id="no step"),
        pytest.param([(-1, 50), (-0.5, 100)], 0.75, id="the mean of two steps"),
        pytest.param([(-11, 100), (-1, 20)], 0.2, id="what lies longer back is forgotten"),
        pytest.param([(-9 + i / 250, 100 if i < 1000 else 0) for i in range(2000)], 0.5, id="two thousand short steps"),
    ],
)
def test_token_utilization_is_that_of_the_last_ten_seconds(steps, ratio):
    metrics, now = ServerMetrics("m", "1"), time.monotonic()
    metrics.ready = READY
    for at, tokens in steps:
        metrics.step(StepOutput(outputs=[], stats=EngineStats(), time=now + at, tokens=tokens, sequences=1))
    assert scraped(metrics)["batch_token_utilization_ratio"] == pytest.approx(ratio)


def test_a_prompt_counts_once_however_often_it_is_computed():
    metrics = ServerMetrics("m", "1")
    record = Record(metrics, arrival=0.0, submitted=0.0, prompt_tokens=7)
    # Two answers; after a preemption the engine reports the prompt's computation again.
    generation_steps = [SequenceOutput(request_id="r", index=i, token_ids=[5], scheduled=1.0) for i in (0, 1, 0)]
    for output in generation_steps:
        record.begun(output)
    assert scraped(metrics)["prompt_tokens_total"] == 7
    assert scraped(metrics)["prefills_total"] == 1
