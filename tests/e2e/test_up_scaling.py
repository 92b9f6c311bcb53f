"""`pagetide up` with autoscaling: a burst brings replicas, idleness takes them away, and no stream is cut.

The replicas are fakes with two batch slots each, scraped twice per second.
"""

from __future__ import annotations

import concurrent.futures
import json
import threading

import pytest

QUICK = {"scaleDown": {"stabilizationWindowSeconds": 3}}


@pytest.fixture
def scaled(up, manifest):
    """`scaled(FLAG..., autoscaling...)`: the service `a` alone."""
    return lambda *flags, **scaling: up(*flags, manifest("a", autoscaling=scaling, drainSeconds=30))


@pytest.fixture
def pool():
    with concurrent.futures.ThreadPoolExecutor(100) as made:
        yield made


def stream(one, tokens):
    """Read a stream to its end; the texts of its events."""
    with one.post({"model": "a", "prompt": "x", "stream": True, "max_tokens": tokens}) as response:
        return response.read().strip().split(b"\n\n")


def is_whole(events, tokens):
    return len(events) == tokens + 1 and events[-1] == b"data: [DONE]" and b"error" not in b"".join(events)


def test_a_burst_brings_replicas_and_idleness_takes_them_away(scaled, pool, until):
    one = scaled(maxReplicas=3, behavior=QUICK)
    assert one.url
    assert one.service("a")["desiredReplicas"] == 1
    burst = [pool.submit(stream, one, 80) for _ in range(6)]
    until(lambda: one.service("a")["readyReplicas"] == 3)
    assert all(is_whole(f.result(), 80) for f in burst)
    until(lambda: one.service("a")["desiredReplicas"] == 1, 40)
    until(lambda: one.service("a")["replicas"] == 1)
    told = one.service("a")
    assert {c["type"]: c["reason"] for c in told["conditions"]}["ScalingActive"] == "Measured"
    assert [d["to"] for d in told["autoscaling"]["decisions"]][-1] == 1
    assert "a: 1 -> 3 replicas: 2 running and 4 waiting, 2 batch slots per replica" in one.text


def test_shrinking_under_constant_streaming_cuts_no_stream(scaled, pool, until):
    one = scaled(minReplicas=1, maxReplicas=4, behavior=QUICK)
    assert one.url
    over = threading.Event()

    def keep_streaming():
        whole = []
        while not over.is_set():
            whole.append(is_whole(stream(one, 40), 40))
        return whole

    burst = [pool.submit(stream, one, 60) for _ in range(8)]
    until(lambda: one.service("a")["readyReplicas"] == 4)
    steady = [pool.submit(keep_streaming)]
    until(lambda: one.service("a")["replicas"] <= 2, 60)
    over.set()
    assert all(is_whole(f.result(), 60) for f in burst)
    answers = [whole for f in steady for whole in f.result()]
    assert answers
    assert all(answers)


def test_a_hundred_first_requests_wake_a_service_that_sleeps(scaled, pool, until):
    one = scaled(minReplicas=0, maxReplicas=2, idleSeconds=2, behavior=QUICK)
    assert one.url
    until(lambda: one.service("a")["replicas"] == 0, 40)
    ready = one.service("a")["conditions"][0]
    assert (ready["status"], ready["reason"]) == ("True", "ScaledToZero")
    assert "a is not Ready" not in one.text, "not while the last one drained, either"
    answers = [f.result() for f in [pool.submit(one.post, {"model": "a", "prompt": "ab"}) for _ in range(100)]]
    assert {json.load(answer)["choices"][0]["text"] for answer in answers} == {"ba"}
    assert one.text.count("0 -> 1 replicas: a gateway holds a request") == 1
    assert "is not ready:" not in one.text, "no warning for one that starts or ends"


def test_this_machines_limit_binds(scaled, pool, until):
    one = scaled("--max-replicas=2", maxReplicas=9, behavior=QUICK)
    assert one.url
    burst = [pool.submit(stream, one, 60) for _ in range(12)]
    until(lambda: one.service("a")["replicas"] == 2)
    limited = {c["type"]: c["reason"] for c in one.service("a")["conditions"]}["ScalingLimited"]
    assert limited == "MaxReplicas"
    assert all(is_whole(f.result(), 60) for f in burst)
    assert "a: 1 -> 2 replicas" in one.text
