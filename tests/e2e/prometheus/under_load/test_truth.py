"""What Prometheus has seen agrees with what the load generator saw, and with itself."""

from __future__ import annotations

import bisect
import re
from typing import Any

import pytest

from pagetide_spec.metrics import LATENCY_BUCKETS


def test_requests_and_tokens_are_those_of_the_load_generator(observed: Any) -> None:
    done, leavers, runs = observed.done, observed.leavers, (observed.calm, *observed.crowds)
    assert [run["requests"]["failed"] for run in runs] == [{}] * len(runs)
    assert observed.number('sum(pagetide_requests_total{finish_reason=~"stop|length"})') == done
    prompts, answers = (sum(run["tokens"][k] for run in runs) for k in ("input", "output"))
    # Those who left had a prompt of 20 tokens each, and as many tokens as they were in time for.
    assert observed.number("sum(pagetide_prompt_tokens_total)") == prompts + leavers * 20
    assert observed.number("sum(pagetide_prefills_total)") == done + leavers
    generated, decodes = (observed.number(f"sum(pagetide_{name}_total)") for name in ("generation_tokens", "decodes"))
    assert generated == decodes + done + leavers
    assert 0 < generated - answers <= leavers * 400
    assert observed.number("sum(pagetide_request_generation_tokens_count)") == done + leavers
    at_gateway = done - observed.calm["requests"]["ok"] + leavers
    assert observed.number('sum(pagetide_gateway_requests_total{code="200",model_name="llm"})') == at_gateway
    assert observed.number("sum(pagetide_gateway_client_disconnects_total)") == leavers


@pytest.mark.parametrize(("share", "name"), [(0.5, "p50"), (0.9, "p90")])
def test_time_to_first_token_is_within_a_bucket_of_what_clients_saw(observed: Any, share: float, name: str) -> None:
    seen = observed.first_token[share]
    assert seen is not None
    assert abs(bucket(seen) - bucket(observed.calm["ttft"][name])) <= 1, (seen, observed.calm["ttft"])


def bucket(seconds: float) -> int:
    return bisect.bisect_left(LATENCY_BUCKETS, seconds)


def test_the_shortage_is_seen(observed: Any) -> None:
    assert observed.number('sum(pagetide_preemptions_total{mode="recompute"})') > 0
    assert observed.number('sum(pagetide_preemptions_total{mode="swap"})') > 0
    out, back = (observed.number(f'sum(pagetide_swapped_blocks_total{{direction="{d}"}})') for d in ("out", "in"))
    assert out >= back > 0
    assert observed.number("sum(pagetide_kv_block_allocation_failures_total)") > 0
    assert max(observed.values("pagetide_kv_cache_utilization_ratio")) > 0.8
    assert max(observed.values("sum(pagetide_requests_waiting)")) > 0


def test_blocks_are_neither_lost_nor_made(observed: Any) -> None:
    total = 'sum by (pod) (pagetide_kv_blocks{state!="swapped"})'
    counts = {(s["metric"]["pod"], float(v)) for s in observed.ever(total) for _, v in s["values"]}
    assert len(counts) == len(observed.servers), counts
    assert observed.number('sum(pagetide_kv_blocks{state="used"})') == 0
    assert observed.number('sum(pagetide_kv_blocks{state="swapped"})') == 0


def test_cache_hits_are_those_of_the_shared_beginnings(observed: Any) -> None:
    hits = observed.number("sum(pagetide_prefix_cache_hit_tokens_total)")
    assert hits >= sum(run["tokens"]["prefix_cache_hits"] for run in observed.crowds) > 0


def test_no_counter_ever_went_backwards(observed: Any) -> None:
    names = observed.get("/api/v1/label/__name__/values")
    counters = [n for n in names if re.fullmatch(r"pagetide_\w+_(total|count|sum|bucket)", n)]
    assert len(counters) > 50
    assert [name for name in counters if observed.now(f"resets({name}[10m]) > 0")] == []


def test_the_gateway_counts_each_trouble_once(observed: Any) -> None:
    def total(name: str, **labels: str) -> float | None:
        matchers = ",".join(f'{label}="{value}"' for label, value in labels.items())
        return observed.number(f"sum(pagetide_gateway_{name}_total{{{matchers}}})")

    assert total("held", model_name="asleep", outcome="released") == 1
    assert total("held", model_name="refused", outcome="no_ready_replica") == 1
    assert total("held", model_name="llm") == 0
    assert total("limited", limit="concurrency_limit_exceeded") == 1
    assert total("limited", limit="rate_limit_exceeded") == 1
    assert total("requests", code="429") == 2
    assert total("requests", code="503") == 1
    assert total("broken_streams", model_name="frail") >= 1
    # Three failures in a row, the first of which may have been the broken stream.
    assert total("retries", model_name="frail") >= 2
    assert total("ejections", model_name="frail") == 1
    assert max(observed.values("sum(pagetide_gateway_requests_held)")) >= 2


def test_the_operator_scaled_to_its_maximum_and_says_so(observed: Any) -> None:
    assert max(observed.values('pagetide_operator_desired_replicas{service="llm"}')) == 2
    assert max(observed.values("sum(pagetide_operator_asked_replicas) by (signal)")) > 2
    limited = 'pagetide_operator_service_condition{condition="ScalingLimited",reason="MaxReplicas",service="llm"} == 1'
    assert observed.ever(limited)
    up = 'sum(pagetide_operator_scale_changes_total{direction="up",service="llm"})'
    assert observed.number(up) == 1
    assert observed.number('pagetide_operator_scale_changes_total{service="asleep",winner="wake"}') == 1


def test_top_shows_the_same(observed: Any, session_run: Any) -> None:
    top = ("-m", "pagetide_cli.main", "top", "--once", "--interval=0.5")
    server = session_run(*top, observed.servers[0])
    both = session_run(*top, observed.gateway, f"--api-key={observed.api_key}")
    assert server.process.wait(60) == both.process.wait(60) == 0
    assert re.search(r"127\.81\.0\.1:8000 +ready +0 +0 +0 % +0 %", server.text), server.text
    used = observed.number('pagetide_kv_blocks{pod="llm-0",state="cached"}')
    assert re.search(rf"cached +{used:,.0f}\b", server.text), server.text
    assert "llm: 2 of 2 ready, 0 in flight" in both.text
