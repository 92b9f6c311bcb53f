"""SIGTERM and Ctrl-C: what ends, what is waited for, and exit codes."""

from __future__ import annotations

import concurrent.futures as futures
import os
import re
import signal
import time

import httpx
import pytest

from pagetide_server.process.client import EXIT_SECONDS
from pagetide_server.wire.launch import EXIT_ENGINE

from .asking import alive, stream

# Of fake_core.py.
LONG_STEP = 384
PROBES = ("/livez", "/readyz", "/health")


def test_sigterm_lets_streams_finish_and_takes_no_more(launch, wait):
    with launch(FAKE_STEP_S="0.05") as server, futures.ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(stream, server) for _ in range(4)]
        wait(lambda: server.metric("pagetide_requests_running") == 4)
        engine = server.engine_pid
        server.process.send_signal(signal.SIGTERM)
        assert wait(lambda: server.status("/readyz") == 503, 2) < 1
        assert [server.status(p) for p in PROBES] == [200, 503, 503]
        late = httpx.post(server.url + "/v1/completions", json={"prompt": "x"}, trust_env=False)
        assert late.status_code == 503
        assert "retry-after" in late.headers
        for job in jobs:
            text = job.result(20)
            assert text.endswith("data: [DONE]\n\n")
            assert text.count('"finish_reason":"length"') == 1
        assert server.process.wait(10) == 0
        assert not alive(engine)
    log = server.log.read_text()
    assert "POST /v1/completions 503" in log
    assert not any(path in log for path in PROBES)


def test_sigterm_under_load_loses_no_stream_that_has_begun(launch, wait):
    """Forty clients ask again and again, whatever the signal's moment finds them at."""
    begun, answered = [], []

    def client(server, number):
        with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as http:
            while True:
                body = {"prompt": f"The old {number}", "max_tokens": 20, "ignore_eos": True, "stream": True}
                try:
                    with http.stream("POST", "/v1/completions", json=body) as response:
                        if response.status_code != 200:
                            return response.status_code
                        begun.append(number)
                        text = response.read().decode()
                except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError):
                    return "gone"
                assert text.endswith("data: [DONE]\n\n"), text[-300:]
                assert text.count('"finish_reason":"length"') == 1
                answered.append(number)

    with launch(FAKE_STEP_S="0.02") as server, futures.ThreadPoolExecutor(40) as pool:
        jobs = [pool.submit(client, server, number) for number in range(40)]
        wait(lambda: len(answered) > 60)
        assert server.stop() == 0
        assert {job.result(20) for job in jobs} <= {503, "gone"}
    assert len(begun) == len(answered)


@pytest.mark.parametrize(
    ("second", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["second SIGTERM", "Ctrl-C after SIGTERM"]
)
def test_a_second_signal_cuts_streams_with_an_error(launch, wait, second, code):
    with launch(FAKE_STEP_S="0.1") as server, futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(stream, server, max_tokens=400)
        wait(lambda: server.metric("pagetide_requests_running") == 1)
        server.process.send_signal(signal.SIGTERM)
        wait(lambda: server.status("/readyz") == 503)
        began = time.monotonic()
        assert server.stop(second) == code
        assert time.monotonic() - began < 5
        assert "shutting down" in job.result(5)
    assert "cutting 1 requests: a second signal came" in server.log.read_text()


def test_a_second_signal_does_not_wait_for_a_long_step(launch, wait):
    with launch() as server, futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(server.post, "/v1/completions", prompt=[LONG_STEP, 300], max_tokens=5)
        # Until its first step is over, it waits.
        wait(lambda: server.metric("pagetide_requests_waiting") == 1)
        server.process.send_signal(signal.SIGTERM)
        wait(lambda: server.status("/readyz") == 503)
        began = time.monotonic()
        assert server.stop() == 143
        assert time.monotonic() - began < 4
        assert job.result(20).status_code == 503


def test_a_second_signal_that_cuts_nothing_is_a_usual_end(launch):
    with launch() as server:
        # Both are there when it looks.
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            server.process.send_signal(number)
        assert server.process.wait(20) == 0


def test_a_drain_has_an_end(launch, wait):
    with launch("--shutdown-timeout-s=1", FAKE_STEP_S="0.1") as server, futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(stream, server, max_tokens=400)
        wait(lambda: server.metric("pagetide_requests_running") == 1)
        assert server.stop() == 0
        text = job.result(5)
        assert "shutting down" in text
        assert '"finish_reason":"' not in text
    assert "cutting 1 requests: they took longer than 1 s (--shutdown-timeout-s)" in server.log.read_text()


def test_a_drain_that_a_stuck_engine_keeps_from_ending_has_a_code_and_says_why(launch, wait):
    # Long enough for its silence to be told from a long step's.
    with launch("--shutdown-timeout-s=7", FAKE_STEP_S="0.1") as server, futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(stream, server, max_tokens=400)
        wait(lambda: server.metric("pagetide_requests_running") == 1)
        os.kill(server.engine_pid, signal.SIGSTOP)
        began = time.monotonic()
        assert server.stop() == EXIT_ENGINE
        # Not what the engine gets to end its step.
        assert time.monotonic() - began < 7 + EXIT_SECONDS
        assert "shutting down" in job.result(5)
    said = r" ERROR pagetide cutting 1 requests: the engine process has given no sign of life for \d+ s\n"
    assert re.search(said, server.log.read_text())


def test_ctrl_c_to_the_whole_group_drains_too(launch, wait):
    with launch(FAKE_STEP_S="0.05") as server, futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(stream, server, max_tokens=30)
        wait(lambda: server.metric("pagetide_requests_running") == 1)
        os.killpg(server.process.pid, signal.SIGINT)
        assert '"finish_reason":"length"' in job.result(10)
        assert server.process.wait(10) == 0
