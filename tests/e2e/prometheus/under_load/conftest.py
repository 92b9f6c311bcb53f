"""All that happens to servers, gateway and operator before the tests look.

In this order: a calm load on one server; a crowd, for which the operator scales to the maximum, and which has too
little KV memory; clients that leave before the end. Meanwhile replicas hang up, keys come to their limits, and requests
wait for a service that sleeps and for one that cannot wake.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

CLI = ("-m", "pagetide_cli.main")
LEAVERS = 12
# One after the other, so that a client sees what its server does, and not the queue of a busy machine.
CALM_LOAD = ("--concurrency=1", "--requests=20", "--input-tokens=300", "--output-tokens=2")
CROWD_LOAD = ("--concurrency=24", "--requests=200", "--input-tokens=96", "--prefix-tokens=64", "--output-tokens=48")
# How long crowds come one after another for; a fast machine is done with each before the operator has looked twice.
SCALING_S = 60
LOAD_S = 240


@pytest.fixture(scope="session")
def observed(prometheus: Any, session_run: Any, until: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Everything, once the load is over and Prometheus has seen it."""
    prometheus.leavers = LEAVERS
    with ThreadPoolExecutor(1) as other:
        trouble = other.submit(make_trouble, prometheus, until)
        Load(session_run, until, tmp_path_factory.mktemp("load"), prometheus).run()
        trouble.result()
    settle(prometheus, until)
    return prometheus


def settle(found: Any, until: Any) -> None:
    """Wait until Prometheus has seen the end."""
    until(lambda: found.number("sum(pagetide_requests_running + pagetide_requests_waiting)") == 0, 30)
    until(lambda: found.number("sum(pagetide_gateway_client_disconnects_total)") == LEAVERS, 30)
    # The last trouble at the gateway, as a graph shows it.
    failed = 'rate(pagetide_gateway_requests_total{model_name="refused",code="503"}[1m])'
    until(lambda: any(value > 0 for value in found.values(failed)), 30)
    # The coarsest query looks every 15 s.
    until(lambda: time.time() - found.began > 20, 30)


class Load:
    """The load generator's part."""

    def __init__(self, run: Any, until: Any, folder: Path, found: Any) -> None:
        self._run, self._until, self._file, self._found = run, until, folder / "figures.json", found

    def run(self) -> None:
        """Calm, then crowds until the operator has scaled and one more, then those who leave."""
        found = self._found
        self._until(lambda: is_ready(found, "llm", 1), 60)
        found.calm = self._bench(found.servers[0], CALM_LOAD)
        done = 'sum(pagetide_requests_total{finish_reason="length"})'
        self._until(lambda: found.number(done) == found.done, 30)
        buckets = 'pagetide_time_to_first_token_seconds_bucket{pod="llm-0"}'
        for share in (0.5, 0.9):
            found.first_token[share] = found.number(f"histogram_quantile({share}, sum by (le) ({buckets}))")
        latest = time.monotonic() + SCALING_S
        while not self._is_scaled():
            assert time.monotonic() < latest, f"the operator does not scale; crowds so far: {len(found.crowds)}"
            found.crowds.append(self._bench(found.gateway, CROWD_LOAD))
        self._until(lambda: is_ready(found, "llm", 2), 30)
        found.crowds.append(self._bench(found.gateway, CROWD_LOAD))
        self._until(lambda: found.number(done) == found.done, 30)
        leave(found)
        self._until(lambda: found.number('sum(pagetide_requests_total{finish_reason="abort"})') == LEAVERS, 60)

    def _is_scaled(self) -> bool:
        return self._found.number('pagetide_operator_desired_replicas{service="llm"}') == 2

    def _bench(self, url: str, flags: tuple[str, ...]) -> dict[str, Any]:
        command = ("bench", url, "--model=llm", f"--api-key={self._found.api_key}", *flags, "--warmup=0")
        bench = self._run(*CLI, *command, f"--json={self._file}")
        assert bench.process.wait(LOAD_S) == 0, bench.text
        return json.loads(self._file.read_text())


def leave(found: Any) -> None:
    """A crowd of clients, each of which goes once it has seen a first token."""
    body = {"model": "llm", "prompt": [5] * 20, "max_tokens": 400, "ignore_eos": True, "stream": True}
    open_ones = [found.ask("all", **body) for _ in range(LEAVERS)]
    for connection in open_ones:
        assert connection.getresponse().readline().startswith(b"data:")
        connection.close()


def status_of(connection: http.client.HTTPConnection) -> int:
    """What it was answered, once all of it has come."""
    with contextlib.closing(connection):
        response = connection.getresponse()
        with contextlib.suppress(http.client.IncompleteRead):
            response.read()
        return response.status


def make_trouble(found: Any, until: Any) -> None:
    """Everything that goes wrong at a gateway."""
    until(lambda: is_ready(found, "frail", 2), 60)
    held = {name: found.ask(key, model=name, prompt="x")
            for name, key in (("asleep", "all"), ("refused", "one at once"))}  # fmt: skip
    until(lambda: found.counts("pagetide_gateway_requests_held", "refused"), 10)
    assert status_of(found.ask("one at once", model="frail", prompt="x")) == 429
    assert [status_of(found.ask("six a minute", model="frail", prompt="x")) for _ in range(2)] == [200, 429]
    hang_up(found, "pagetide_gateway_broken_streams_total", stream=True)
    hang_up(found, "pagetide_gateway_ejections_total", stream=False)
    assert {name: status_of(connection) for name, connection in held.items()} == {"asleep": 200, "refused": 503}


def is_ready(found: Any, model: str, count: int) -> bool:
    query = f'pagetide_gateway_replicas{{model_name="{model}",state="ready"}}'
    return found.number(query) == count


def hang_up(found: Any, counter: str, *, stream: bool) -> None:
    """Ask the frail service until the gateway has counted what the broken one of its two replicas does."""
    for index in range(200):
        status_of(found.ask("all", model="frail", prompt=f"{counter} {index}", stream=stream))
        if found.counts(counter, "frail"):
            return
    raise AssertionError(f"{counter}: 200 requests did not meet the broken replica")
