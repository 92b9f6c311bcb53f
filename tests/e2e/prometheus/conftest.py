"""A real Prometheus beside real servers, gateway and operator. What happens to them is described in `under_load`."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pagetide_dashboards.files import ROOT

PROMETHEUS = os.environ.get("PROMETHEUS") or shutil.which("prometheus")
HERE = Path(__file__).parent
CLI = ("-m", "pagetide_cli.main")

# The operator asks pods for their metrics at port 8000; addresses of this machine that nobody else takes.
ADDRESSES = {"llm": ["127.81.0.1", "127.81.0.2"], "frail": ["127.81.0.3", "127.81.0.4"], "asleep": ["127.81.0.5"]}
BEHAVIOURS = {"127.81.0.3": ("frail", "breaks"), "127.81.0.4": ("frail", "good"), "127.81.0.5": ("asleep", "good")}
# Fifty blocks: three of the eight sequences that may run.
SMALL = ("--kv-cache-memory-gib=0.0003", "--max-num-seqs=8", "--max-model-len=512", "--block-size=16")
SWAPS = (("--swap-space-gib=0",), ("--swap-space-gib=0.01", "--preemption-mode=swap"))
LOAD_S = 240
HOLD_S = 15
KEYS = {
    "all": {},
    "one at once": {"maxConcurrent": 1},
    "six a minute": {"requestsPerMinute": 6},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this folder takes long, and needs Prometheus."""
    why = 'needs Prometheus: name it in PROMETHEUS, or: eval "$(.ci/observers)"'
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(600))
            item.add_marker(pytest.mark.skipif(PROMETHEUS is None, reason=why))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def secret(name: str) -> str:
    return f"secret-of-{name.replace(' ', '-')}"


class Observed:
    """Prometheus, and what the load generator saw.

    Attributes:
        calm, crowds: what `pagetide bench` reported of its runs.
        first_token: (share, seconds) of the calm load, as its server exported them when it was over.
        leavers: requests whose client left.
        gateway: the gateway's address.
    """

    def __init__(self, url: str, gateway: str) -> None:
        self.url, self.gateway, self.began = url, gateway, time.time()
        self.leavers = 0
        self.calm: dict[str, Any] = {}
        self.crowds: list[dict[str, Any]] = []
        self.first_token: dict[float, float | None] = {}
        self.servers = [f"http://{address}:8000" for address in ADDRESSES["llm"]]
        self.api_key = secret("all")

    def get(self, path: str, **parameters: Any) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(parameters)}", timeout=20) as reply:
            answer = json.load(reply)
        assert answer["status"] == "success", answer
        return answer["data"]

    def now(self, query: str) -> list[dict[str, Any]]:
        """Series at this moment."""
        return self.get("/api/v1/query", query=query)["result"]

    def ever(self, query: str) -> list[dict[str, Any]]:
        """Series since the beginning, as a graph shows them."""
        return self.get("/api/v1/query_range", query=query, start=self.began, end=time.time(), step=1)["result"]

    def number(self, query: str) -> float | None:
        """The only value there is now, or None."""
        found = self.now(query)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def values(self, query: str) -> list[float]:
        """Every value that any of its series ever had; those that are no number are none."""
        values = (float(value) for series in self.ever(query) for _, value in series["values"])
        return [value for value in values if value == value]

    def ask(self, key: str, **body: Any) -> http.client.HTTPConnection:
        """A request to the gateway that has been sent; its answer is still to come. `key`: one of KEYS."""
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.gateway).netloc, timeout=120)
        headers = {"content-type": "application/json", "authorization": f"Bearer {secret(key)}"}
        connection.request("POST", "/v1/completions", json.dumps({"max_tokens": 2, **body}), headers)
        return connection

    def counts(self, name: str, model: str) -> bool:
        """Whether the gateway tells of any for a model, before Prometheus may have seen it."""
        with urllib.request.urlopen(f"{self.gateway}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
        return any(line.startswith(f'{name}{{model_name="{model}"}}') and not line.endswith(" 0.0") for line in lines)

    @property
    def done(self) -> int:
        """Requests of the load generator so far."""
        return sum(run["requests"]["ok"] for run in (self.calm, *self.crowds))


def configuration(folder: Path, gateway: int, operator: int) -> Path:
    """Prometheus' own settings, with the labels that ServiceMonitors would give."""
    servers = [
        {"targets": [f"{address}:8000"], "labels": {"namespace": "ns", "service": "llm", "pod": f"llm-{index}"}}
        for index, address in enumerate(ADDRESSES["llm"])
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
    return {"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": "pagetide-system", "pod": name}}


@pytest.fixture(scope="session")
def servers(session_run: Any, tiny_model: Any, until: Any) -> None:
    """Real ones for `llm`, and stand-ins for what is only routed to."""
    for address, (model, behaviour) in BEHAVIOURS.items():
        session_run(str(HERE.parent / "fake_replica.py"), "8000", model, behaviour, address)
    real = [
        session_run(*CLI, "serve", str(tiny_model("llama")), "--served-model-name=llm", f"--host={address}", *SMALL,
                    *swap)
        for address, swap in zip(ADDRESSES["llm"], SWAPS, strict=True)
    ]  # fmt: skip
    until(lambda: all("serving " in s.text or s.process.poll() is not None for s in real), LOAD_S)
    assert all("serving " in s.text for s in real), [s.text for s in real]


@pytest.fixture(scope="session")
def fleet(servers: None, session_run: Any, until: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, int]:
    """Operator and gateway in a cluster of all services; the ports of the gateway and of the operator's metrics."""
    folder, port, operator_port = tmp_path_factory.mktemp("fleet"), free_port(), free_port()
    cluster = session_run(str(HERE / "emulated_cluster.py"), str(operator_port), json.dumps(ADDRESSES))
    until(lambda: "API server at" in cluster.text, 60)
    context = {"clusters": [{"name": "c", "cluster": {"server": cluster.text.split("API server at ")[1].split()[0]}}]}
    context |= {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}
    kubeconfig, keys = folder / "kubeconfig", folder / "keys.yaml"
    kubeconfig.write_text(json.dumps({**context, "users": [{"name": "u", "user": {}}]}))
    keys.write_text(json.dumps([{"name": name, "key": secret(name), **limits} for name, limits in KEYS.items()]))
    gateway = session_run(*CLI, "gateway", "--namespace=ns", "--host=127.0.0.1", f"--port={port}",
                          f"--api-keys={keys}", f"--hold-seconds={HOLD_S}",
                          environment={"KUBECONFIG": str(kubeconfig)})  # fmt: skip
    until(lambda: "listening on" in gateway.text, 60)
    return port, operator_port


@pytest.fixture(scope="session")
def prometheus(fleet: Any, session_run: Any, until: Any, tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """Prometheus, which sees all of them."""
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    gateway, operator = fleet
    session_run(
        f"--config.file={configuration(folder, gateway, operator)}", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", program=PROMETHEUS, is_to_last=True,
    )  # fmt: skip
    found = Observed(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{gateway}")
    until(lambda: answers(found), 60)
    until(lambda: found.number("count(up == 1)") == 4, 60)
    return found


def answers(found: Observed) -> bool:
    with contextlib.suppress(OSError):
        return bool(found.now("vector(1)"))
    return False
