"""Recording and alert rules. Every alert names its section in docs/runbook.md, which names the parameter to change.

The windows are those of a service that answers in seconds; for others, edit the rules file that is generated here.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from .queries import EVERYTHING, SERVED, WHO, expand, quantile, rate

# A request counts as late from here; a bucket of the histogram ends there.
LATE_SECONDS = 0.5
# The share of requests that may be late.
BUDGET = 0.05
# Requests per second from which on a share of them is significant.
FEW = 0.02


@dataclasses.dataclass(frozen=True)
class Record:
    """A query that is answered in advance, under a name of its own."""

    name: str
    text: str
    optional: str = ""


@dataclasses.dataclass(frozen=True)
class Alert:
    """One alert. `optional`: why its metrics may be missing on a healthy fleet."""

    name: str
    text: str
    lasts: str
    severity: Literal["critical", "warning"]
    summary: str
    optional: str = ""

    @property
    def anchor(self) -> str:
        """Its section in the runbook."""
        return self.name.lower()


def _late(window: str) -> str:
    """The share of requests whose first step came too late."""
    on_time = rate(f'@request_queue_seconds_bucket{{le="{LATE_SECONDS}"}}', window=window)
    every = rate("@request_queue_seconds_count", window=window)
    return f"1 - {on_time} / ({every} > 0)"


def _burn(short: str, long: str, times: float) -> str:
    """The budget burns so many times too fast, now and for a while; of a few requests one late one is no such sign."""
    limit = f"{times * BUDGET:g}"
    shares = (f"pagetide:late_requests:ratio{window} > {limit}" for window in (short, long))
    return " and ".join((*shares, f"{rate('@request_queue_seconds_count', window=short)} > {FEW}"))


IDLE = "while no request comes in"
ANSWERED = rate("@gateway_requests_total", SERVED, "5m")
FAILED = rate('@gateway_requests_total{code=~"5.."}', SERVED, "5m")
# Targets that do not answer. `up` is Prometheus' own, and says nothing of what its target is.
TARGET = "namespace, service, pod, instance"
SILENT = f"max by ({TARGET}) (up) == 0"
# One of ours: it has told of itself not long ago, or fewer answer than its service has ready replicas. One that starts
# has done neither, one that leaves is a target no longer.
TOLD_BEFORE = f"{SILENT} and on ({TARGET}) count_over_time(@max_num_seqs[1d])"
READY_UNHEARD = (
    f'{SILENT} and on ({WHO}) max by ({WHO}) (@operator_service_replicas{{state="ready"}}) > on ({WHO}) '
    f"sum by ({WHO}) (max by ({TARGET}) (up))"
)
BROKEN = '@requests_total{finish_reason="error"}'

RECORDS = (
    *(Record(f"pagetide:late_requests:ratio{window}", _late(window), IDLE) for window in ("5m", "30m", "1h", "6h")),
    Record("pagetide:queue_seconds:p95_5m", quantile(0.95, "@request_queue_seconds", window="5m"), IDLE),
    Record("pagetide:time_to_first_token_seconds:p95_5m",
           quantile(0.95, "@time_to_first_token_seconds", window="5m"), IDLE),
    Record("pagetide:inter_token_seconds:p95_5m", quantile(0.95, "@inter_token_seconds", window="5m"), IDLE),
    Record("pagetide:generation_tokens:rate5m", rate("@generation_tokens_total", window="5m")),
    Record("pagetide:prompt_tokens:rate5m", rate("@prompt_tokens_total", window="5m")),
    *(
        Record(
            f"pagetide:prefix_cache_hits:ratio{window}",
            f"{rate('@prefix_cache_hit_tokens_total', window=window)} / "
            f"({rate('@prefix_cache_query_tokens_total', window=window)} > 0)",
            IDLE,
        )
        for window in ("10m", "6h")
    ),
    Record("pagetide:gateway_errors:ratio5m",
           f"({FAILED} or 0 * {ANSWERED}) / ({ANSWERED} > 0)", IDLE),
)  # fmt: skip

ALERTS = (
    Alert(
        "PagetideQueueTimeBurnsFast", _burn("5m", "1h", 10), "2m", "critical",
        "Half of the requests of {{ $labels.namespace }}/{{ $labels.service }} wait longer than 0.5 s for their first "
        "step.",
    ),
    Alert(
        "PagetideQueueTimeBurns", _burn("30m", "6h", 3), "15m", "warning",
        "More than 15 % of the requests of {{ $labels.namespace }}/{{ $labels.service }} wait longer than 0.5 s for "
        "their first step.",
    ),
    Alert(
        "PagetideKvMemoryShort",
        "avg_over_time(@kv_cache_utilization_ratio[5m]) > 0.8 and on (namespace, pod, instance, model_name) "
        "sum by (namespace, pod, instance, model_name) (rate(@preemptions_total[5m])) > 0.05",
        "5m", "warning",
        "{{ $labels.namespace }}/{{ $labels.pod }} has too little KV memory for what it runs: sequences are "
        "preempted.",
    ),
    Alert(
        "PagetideBlockAllocationsFail",
        f"{rate('@kv_block_allocation_failures_total', window='5m')} > 0.01 * "
        f"{rate('@kv_block_allocations_total', window='5m')}",
        "10m", "warning",
        "{{ $labels.namespace }}/{{ $labels.service }}: over 1 % of KV block allocations fail.",
    ),
    Alert(
        "PagetideHitRateCollapsed",
        "pagetide:prefix_cache_hits:ratio10m < 0.5 * (pagetide:prefix_cache_hits:ratio6h > 0.1) "
        f"and {rate('@prefix_cache_query_tokens_total', window='10m')} > 10",
        "10m", "warning",
        "{{ $labels.namespace }}/{{ $labels.service }}: the hit ratio of the prefix cache fell by more than half.",
    ),
    Alert(
        "PagetideEngineStuck",
        "rate(@engine_steps_total[2m]) == 0 and on (namespace, pod, instance, model_name) "
        "(@requests_running + @requests_waiting + @requests_swapped) > 0",
        "2m", "critical",
        "{{ $labels.namespace }}/{{ $labels.pod }} has work and completes no step.",
    ),
    Alert(
        "PagetideServerSilent", f"({TOLD_BEFORE}) or ({READY_UNHEARD})", "5m", "warning",
        "{{ $labels.namespace }}/{{ $labels.pod }} has not answered Prometheus for five minutes.",
    ),
    Alert(
        "PagetideCrashLoop",
        f"max by ({WHO}, reason) (@operator_service_condition{{condition=\"Ready\",reason=~\"CrashLoopBackOff|"
        f"OOMKilled\"}}) == 0 or max by ({WHO}, reason) "
        "(label_replace(resets(@engine_steps_total[30m]), \"reason\", \"restarts\", \"\", \"\")) > 2",
        "1m", "critical",
        "Servers of {{ $labels.namespace }}/{{ $labels.service }} exit repeatedly ({{ $labels.reason }}).",
    ),
    Alert(
        "PagetideScalingLimitedAtMax",
        f"max by ({WHO}) (@operator_service_condition{{condition=\"ScalingLimited\",reason=\"MaxReplicas\"}}) == 1",
        "10m", "warning",
        "{{ $labels.namespace }}/{{ $labels.service }} has maxReplicas, and the load asks for more.",
        "where no service is at its maximum",
    ),
    Alert(
        "PagetideScalingBlind",
        f"max by ({WHO}) (@operator_service_condition{{condition=\"ScalingActive\",reason=\"NoMetrics\"}}) == 0",
        "5m", "warning",
        "No ready replica of {{ $labels.namespace }}/{{ $labels.service }} can be scraped; nothing is scaled.",
        "where all replicas can be scraped",
    ),
    Alert(
        "PagetideNoLeader", "(sum(@operator_leader) or vector(0)) == 0", "1m", "critical",
        "No operator acts: nothing is scaled, repaired or rolled out.",
    ),
    Alert(
        "PagetideReconcilesFail",
        "sum(rate(@operator_reconciles_total{outcome=\"error\"}[10m])) > 0.1 * "
        "sum(rate(@operator_reconciles_total[10m]))",
        "10m", "warning",
        "Over a tenth of the operator's reconciles fail.",
    ),
    Alert(
        "PagetideGatewayErrors", f"pagetide:gateway_errors:ratio5m > 0.01 and {ANSWERED} > {FEW}", "5m",
        "critical",
        "Over 1 % of the requests for {{ $labels.namespace }}/{{ $labels.model_name }} are answered with a 5xx status.",
    ),
    Alert(
        "PagetideRequestsHeld",
        f"sum by ({SERVED}) (@gateway_requests_held) > 0 and "
        f"max by ({SERVED}) (@gateway_replicas{{state=\"ready\"}}) == 0",
        "5m", "critical",
        "Requests for {{ $labels.namespace }}/{{ $labels.model_name }} have waited five minutes for a replica.",
    ),
    Alert(
        "PagetideRequestsFail",
        f"{rate(BROKEN, window='5m')} > 0.01 * {rate('@requests_total', window='5m')}",
        "5m", "critical",
        "Over 1 % of the requests of {{ $labels.namespace }}/{{ $labels.service }} fail by a fault of the server.",
    ),
)  # fmt: skip


def rules() -> dict[str, Any]:
    """The content of a rules file."""
    records = [{"record": r.name, "expr": expand(r.text, EVERYTHING)} for r in RECORDS]
    alerts = [
        {
            "alert": a.name,
            "expr": expand(a.text, EVERYTHING),
            "for": a.lasts,
            "labels": {"severity": a.severity},
            "annotations": {"summary": a.summary, "runbook": f"docs/runbook.md#{a.anchor}"},
        }
        for a in ALERTS
    ]
    return {
        "groups": [
            {"name": "pagetide.records", "rules": records},
            {"name": "pagetide.alerts", "rules": alerts},
        ]
    }


def prometheus_rule() -> dict[str, Any]:
    """The same for the Prometheus operator."""
    metadata = {"name": "pagetide", "labels": {"app.kubernetes.io/name": "pagetide"}}
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": metadata, "spec": rules()}
