"""A real Prometheus looks at real servers, gateway and operator under load: every query of every panel and rule has an
answer, and the answers agree with what the load generator saw.

Two servers have too little KV memory for what comes, and a crowd of clients leaves before the end.
"""

from __future__ import annotations

import bisect
import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagetide_dashboards.files import DASHBOARDS, ROOT
from pagetide_dashboards.gateway import EVENT as NO_EVENT
from pagetide_dashboards.model import Query
from pagetide_dashboards.queries import EVERYTHING, expand
from pagetide_dashboards.rules import ALERTS, RECORDS
from pagetide_dashboards.service import NO_DCGM, NO_GPU
from pagetide_spec.metrics import LATENCY_BUCKETS

PROMETHEUS = os.environ.get("PROMETHEUS") or shutil.which("prometheus")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        PROMETHEUS is None, reason='needs Prometheus: name it in PROMETHEUS, or: eval "$(.ci/observers)"'
    ),
]

# The operator asks pods for their metrics at port 8000; addresses of this machine that nobody else takes.
ADDRESSES = ("127.81.0.1", "127.81.0.2")
# Fifty blocks: three of the eight sequences that may run.
SMALL = ("--kv-cache-memory-gib=0.0003", "--max-num-seqs=8", "--max-model-len=512", "--block-size=16")
SWAPS = (("--swap-space-gib=0",), ("--swap-space-gib=0.01", "--preemption-mode=swap"))
# Enough for the autoscaler, which looks every five seconds, to see it on a fast machine.
REQUESTS, INPUT, SHARED, OUTPUT = 400, 96, 64, 48
LEAVERS = 12
# One after the other, so that a client sees what its server does, and not the queue of a busy machine.
CALM, CALM_INPUT = 20, 300
CALM_LOAD = ("--concurrency=1", f"--requests={CALM}", f"--input-tokens={CALM_INPUT}", "--output-tokens=2")
CROWD_LOAD = (
    "--concurrency=24", f"--requests={REQUESTS}", f"--input-tokens={INPUT}", f"--prefix-tokens={SHARED}",
    f"--output-tokens={OUTPUT}",
)  # fmt: skip
LOAD_S = 240


DONE = 'sum(pagetide_requests_total{finish_reason="length"})'


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


class Observed:
    """Prometheus, and what the load generator saw."""

    def __init__(self, url: str) -> None:
        self.url, self.began = url, time.time()
        self.calm: dict[str, Any] = {}
        self.crowd: dict[str, Any] = {}

    def _get(self, path: str, **parameters: Any) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(parameters)}", timeout=20) as reply:
            answer = json.load(reply)
        assert answer["status"] == "success", answer
        return answer["data"]

    def now(self, query: str) -> list[dict[str, Any]]:
        """Series at this moment."""
        return self._get("/api/v1/query", query=query)["result"]

    def ever(self, query: str) -> list[dict[str, Any]]:
        """Series since the beginning, as a graph shows them."""
        return self._get("/api/v1/query_range", query=query, start=self.began, end=time.time(), step=1)["result"]

    def number(self, query: str) -> float | None:
        """The only value there is now, or None."""
        found = self.now(query)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def largest(self, query: str) -> float:
        """The largest value that any of its series ever had."""
        return max((float(v) for series in self.ever(query) for _, v in series["values"]), default=0.0)


def configuration(folder: Path, gateway: int, operator: int) -> Path:
    """Prometheus' own settings, with the labels that ServiceMonitors would give."""
    servers = [
        {"targets": [f"{address}:8000"], "labels": {"namespace": "ns", "service": "llm", "pod": f"llm-{index}"}}
        for index, address in enumerate(ADDRESSES)
    ]
    jobs = [
        {"job_name": "servers", "static_configs": servers},
        {"job_name": "gateway", "static_configs": [target(gateway, "gateway")]},
        {"job_name": "operator", "honor_labels": True, "static_configs": [target(operator, "operator")]},
    ]
    content = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ROOT / "grafana/rules.yaml")],
        "scrape_configs": jobs,
    }
    path = folder / "prometheus.yml"
    path.write_text(json.dumps(content))  # JSON is YAML
    return path


def target(port: int, name: str) -> dict[str, Any]:
    return {"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": "ns", "pod": name}}


@pytest.fixture(scope="module")
def fleet(module_run: Any, tiny_model: Any, until: Any) -> tuple[int, int]:
    """Servers, gateway and operator; the ports of the latter two."""
    servers = [
        module_run("-m", "pagetide_cli.main", "serve", str(tiny_model("llama")), "--served-model-name=llm",
                   f"--host={address}", *SMALL, *swap)
        for address, swap in zip(ADDRESSES, SWAPS, strict=True)
    ]  # fmt: skip
    until(lambda: all("serving " in s.text or s.process.poll() is not None for s in servers), LOAD_S)
    assert all("serving " in s.text for s in servers), [s.text for s in servers]
    port, operator_port = free_port(), free_port()
    urls = ",".join(f"http://{address}:8000" for address in ADDRESSES)
    gateway = module_run("-m", "pagetide_cli.main", "gateway", f"--service=llm={urls}", "--host=127.0.0.1",
                         f"--port={port}")  # fmt: skip
    until(lambda: "listening on" in gateway.text, 60)
    operator = Path(__file__).with_name("operator_on_emulator.py")
    module_run(str(operator), str(operator_port), *ADDRESSES)
    return port, operator_port


@pytest.fixture(scope="module")
def observed(fleet: Any, module_run: Any, until: Any, tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """Everything, once the load is over and Prometheus has seen it."""
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    gateway, operator = fleet
    prometheus = module_run(
        f"--config.file={configuration(folder, gateway, operator)}", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", program=PROMETHEUS,
    )  # fmt: skip
    found = Observed(f"http://127.0.0.1:{port}")
    until(lambda: answers(found), 60)
    until(lambda: found.number("count(up == 1)") == 4, 60)
    found.calm = load(module_run, f"http://{ADDRESSES[0]}:8000", folder, CALM_LOAD)
    until(lambda: found.number(DONE) == CALM, 30)
    found.crowd = load(module_run, f"http://127.0.0.1:{gateway}", folder, CROWD_LOAD)
    until(lambda: found.number(DONE) == CALM + REQUESTS, 30)
    leave(gateway)
    until(lambda: found.number('sum(pagetide_requests_total{finish_reason="abort"})') == LEAVERS, 60)
    until(lambda: found.number("sum(pagetide_requests_running + pagetide_requests_waiting)") == 0, 30)
    until(lambda: found.ever("rate(pagetide_gateway_client_disconnects_total[1m])"), 30)
    # The coarsest query looks every 15 s.
    until(lambda: time.time() - found.began > 20, 30)
    assert prometheus.process.poll() is None, prometheus.text
    return found


def answers(found: Observed) -> bool:
    with contextlib.suppress(OSError):
        return bool(found.now("vector(1)"))
    return False


def load(run: Callable[..., Any], url: str, folder: Path, flags: tuple[str, ...]) -> dict[str, Any]:
    file = folder / "figures.json"
    bench = run("-m", "pagetide_cli.main", "bench", url, *flags, "--warmup=0", f"--json={file}")
    assert bench.process.wait(LOAD_S) == 0, bench.text
    return json.loads(file.read_text())


def leave(port: int) -> None:
    """A crowd of clients, each of which goes once it has seen a first token."""
    body = {"model": "llm", "prompt": [5] * 20, "max_tokens": 400, "ignore_eos": True, "stream": True}
    open_ones = []
    for _ in range(LEAVERS):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        open_ones.append(connection)
    for connection in open_ones:
        assert connection.getresponse().readline().startswith(b"data:")
        connection.close()


# ---- every query has an answer

# What this fleet does not have; whatever else a query gives as its reason to be empty is no excuse here.
ABSENT = (NO_GPU, NO_DCGM, NO_EVENT)


def filled(query: str) -> str:
    """A panel's query as Grafana sends it, for all that the variables can choose."""
    for name, value in (("$__rate_interval", "1m"), ("$__range", "10m"), ("$namespace", "ns")):
        query = query.replace(name, value)
    return re.sub(r"\$(service|model)\b", ".*", query)


QUERIES = [
    pytest.param(query, expand(query.text, board.scope), id=f"{board.uid}: {panel.title}: {query.legend or 'value'}")
    for board in DASHBOARDS
    for panel in board.panels()
    for query in panel.queries
]


@pytest.mark.parametrize(("query", "expression"), QUERIES)
def test_a_panels_query_has_an_answer(observed: Observed, query: Query, expression: str) -> None:
    found = observed.ever(filled(expression))
    values = [float(value) for series in found for _, value in series["values"]]
    assert any(value == value for value in values) or query.optional in ABSENT, "it never had a value"


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.name)
def test_a_recorded_query_is_recorded(observed: Observed, record: Any) -> None:
    assert observed.ever(record.name)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: a.name)
def test_an_alert_can_be_asked_and_its_series_are_there(observed: Observed, alert: Any) -> None:
    expression = expand(alert.text, EVERYTHING)
    observed.ever(expression)
    for selector in re.findall(r"pagetide[:_][\w:]+(?:\{[^}]*\})?", expression):
        seen = observed.ever(re.sub(r'(code|finish_reason|outcome|reason)=~?"[^"]*"', r'\1=~".*"', selector))
        assert seen or alert.optional, selector


def test_prometheus_takes_the_rules(observed: Observed) -> None:
    groups = observed._get("/api/v1/rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(RECORDS) + len(ALERTS)
    assert [rule["name"] for rule in rules if rule["health"] == "err"] == []


# ---- the answers are true


def test_requests_and_tokens_are_those_of_the_load_generator(observed: Observed) -> None:
    done = CALM + REQUESTS
    assert observed.calm["requests"]["ok"] + observed.crowd["requests"]["ok"] == done
    assert observed.number('sum(pagetide_requests_total{finish_reason=~"stop|length"})') == done
    prompts, answers = (observed.calm["tokens"][k] + observed.crowd["tokens"][k] for k in ("input", "output"))
    # Those who left had a prompt of 20 tokens each, and as many tokens as they were in time for.
    assert observed.number("sum(pagetide_prompt_tokens_total)") == prompts + LEAVERS * 20
    assert observed.number("sum(pagetide_prefills_total)") == done + LEAVERS
    generated, decodes = (observed.number(f"sum(pagetide_{name}_total)") for name in ("generation_tokens", "decodes"))
    assert generated == decodes + done + LEAVERS
    assert 0 < generated - answers <= LEAVERS * 400
    assert observed.number("sum(pagetide_request_generation_tokens_count)") == done + LEAVERS
    assert observed.number('sum(pagetide_gateway_requests_total{code="200"})') == REQUESTS + LEAVERS
    assert observed.number("sum(pagetide_gateway_client_disconnects_total)") == LEAVERS


@pytest.mark.parametrize(("share", "name"), [(0.5, "p50"), (0.9, "p90")])
def test_time_to_first_token_is_within_a_bucket_of_what_clients_saw(
    observed: Observed, share: float, name: str
) -> None:
    (series,) = observed.ever(DONE)
    end = next(at for at, value in series["values"] if float(value) == CALM)
    buckets = f'pagetide_time_to_first_token_seconds_bucket{{pod="llm-0"}} @ {end:.3f}'
    seen = observed.number(f"histogram_quantile({share}, sum by (le) ({buckets}))")
    assert seen is not None
    assert abs(bucket(seen) - bucket(observed.calm["ttft"][name])) <= 1, (seen, observed.calm["ttft"])


def bucket(seconds: float) -> int:
    return bisect.bisect_left(LATENCY_BUCKETS, seconds)


def test_the_shortage_is_seen(observed: Observed) -> None:
    assert observed.number('sum(pagetide_preemptions_total{mode="recompute"})') > 0
    assert observed.number('sum(pagetide_preemptions_total{mode="swap"})') > 0
    out, back = (observed.number(f'sum(pagetide_swapped_blocks_total{{direction="{d}"}})') for d in ("out", "in"))
    assert out >= back > 0
    assert observed.number("sum(pagetide_kv_block_allocation_failures_total)") > 0
    assert observed.largest("pagetide_kv_cache_utilization_ratio") > 0.8
    assert observed.largest("sum(pagetide_requests_waiting)") > 0


def test_blocks_are_neither_lost_nor_made(observed: Observed) -> None:
    total = 'sum by (pod) (pagetide_kv_blocks{state!="swapped"})'
    counts = {(s["metric"]["pod"], float(v)) for s in observed.ever(total) for _, v in s["values"]}
    assert len(counts) == len(ADDRESSES), counts
    assert observed.number('sum(pagetide_kv_blocks{state="used"})') == 0
    assert observed.number('sum(pagetide_kv_blocks{state="swapped"})') == 0


def test_cache_hits_are_those_of_the_shared_beginnings(observed: Observed) -> None:
    hits = observed.number("sum(pagetide_prefix_cache_hit_tokens_total)")
    assert hits >= observed.crowd["tokens"]["prefix_cache_hits"] > 0


def test_no_counter_ever_went_backwards(observed: Observed) -> None:
    names = observed._get("/api/v1/label/__name__/values")
    counters = [n for n in names if re.fullmatch(r"pagetide_\w+_(total|count|sum|bucket)", n)]
    assert len(counters) > 50
    assert [name for name in counters if observed.now(f"resets({name}[10m]) > 0")] == []


def test_the_operator_scaled_to_its_maximum_and_says_so(observed: Observed) -> None:
    assert observed.largest('pagetide_operator_desired_replicas{service="llm"}') == 2
    assert observed.largest("sum(pagetide_operator_asked_replicas) by (signal)") > 2
    limited = 'pagetide_operator_service_condition{condition="ScalingLimited",reason="MaxReplicas"} == 1'
    assert observed.ever(limited)
    assert observed.number('sum(pagetide_operator_scale_changes_total{direction="up"})') == 1


def test_top_shows_the_same(observed: Observed, fleet: Any, module_run: Any) -> None:
    gateway, _ = fleet
    server = module_run("-m", "pagetide_cli.main", "top", f"http://{ADDRESSES[0]}:8000", "--once", "--interval=0.5")
    both = module_run("-m", "pagetide_cli.main", "top", f"http://127.0.0.1:{gateway}", "--once", "--interval=0.5")
    assert server.process.wait(60) == both.process.wait(60) == 0
    assert re.search(r"127\.81\.0\.1:8000 +ready +0 +0 +0 % +0 %", server.text), server.text
    used = observed.number('pagetide_kv_blocks{pod="llm-0",state="cached"}')
    assert re.search(rf"cached +{used:,.0f}\b", server.text), server.text
    assert "llm: 2 of 2 ready, 0 in flight" in both.text
