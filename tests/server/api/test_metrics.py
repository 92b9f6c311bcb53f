"""/metrics: names, and counts that are right after whatever happened."""

from __future__ import annotations

import math

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagetide_server.api.histogram import Histogram
from pagetide_server.api.metrics import ServerMetrics
from pagetide_server.engine.messages import EngineStats, StepOutput
from pagetide_spec.metrics import SERVER_METRICS, VLLM_METRICS

COUNTERS = ("prompt_tokens_total", "generation_tokens_total", "prefills_total", "decodes_total")
HISTOGRAMS = (
    "request_queue_seconds", "time_to_first_token_seconds", "inter_token_seconds", "request_seconds",
    "request_prompt_tokens", "request_generation_tokens",
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


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_request_is_counted_once_whatever_n(server, stream):
    before = totals(server)
    server.post("/v1/completions", prompt=[300] * 7, n=3, max_tokens=5, stream=stream)
    assert change(server, before) == {
        "prompt_tokens_total": 7, "generation_tokens_total": 15, "prefills_total": 1, "decodes_total": 12, "length": 1,
        "inter_token_seconds": 12, **dict.fromkeys(set(HISTOGRAMS) - {"inter_token_seconds"}, 1),
    }  # fmt: skip


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
        pytest.param({"cache_salt": "refuse"}, id="refused by the engine"),
    ],
)
def test_refused_requests_count_nothing(server, request_fields):
    before = totals(server)
    assert server.post("/v1/completions", **{"prompt": "x", **request_fields}).status_code in (400, 404)
    assert change(server, before) == {}


def test_failed_requests_are_counted_as_errors(server):
    before = totals(server)
    server.post("/v1/completions", prompt=[300] * 3, cache_salt="fail-after-3")
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
