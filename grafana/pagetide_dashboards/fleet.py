"""*Fleet*: all services side by side; the first to open."""

from __future__ import annotations

from .model import Dashboard, Panel, Query, Row, Variable
from .queries import NAMED, PLACE, SERVICE, WHO, quantile, rate, ratio

# Of a service at zero replicas only the operator has series; where there is none, the servers have.
_TELL = ("requests_running", "operator_service_replicas")
NAMESPACE = Variable("namespace", "namespace", _TELL)
NAME = Variable("service", "service", _TELL, PLACE)

# Each of several operators exports what it sees; they see the same.
REPLICAS = 'max by (namespace, service) (@operator_service_replicas{state="%s"})'
# A sample every 15 s: 240 of them are an hour.
REPLICA_HOURS = f"sum by ({WHO}) (sum_over_time(count by ({WHO}) (@kv_capacity_tokens)[$__range:15s])) / 240"
ERRORS = ratio('@requests_total{finish_reason="error"}', "@requests_total")
HITS = ratio("@prefix_cache_hit_tokens_total", "@prefix_cache_query_tokens_total")
NO_REQUESTS = "while no request finishes within the window"
NO_LOOKUPS = "while no prompt comes in"
NO_OPERATOR = "where no operator runs"

OVERVIEW = Row(
    "Overview",
    [
        Panel(
            "Replicas ready",
            "none",
            "Replicas that answer. Fewer than desired: open Operator, and the Ready condition of the service says why.",
            [Query(f"sum({REPLICAS % 'ready'})", optional=NO_OPERATOR)],
            kind="stat",
            width=3,
            height=4,
        ),
        Panel(
            "Replicas desired",
            "none",
            "What the operator asks the cluster for. At the maximum and requests wait: raise autoscaling.maxReplicas.",
            [Query(f"sum({REPLICAS % 'desired'})", optional=NO_OPERATOR)],
            kind="stat",
            width=3,
            height=4,
        ),
        Panel(
            "Generated tokens per second",
            "short",
            "Tokens sent to clients by all services.",
            [Query("sum(rate(@generation_tokens_total[$__rate_interval]))")],
            kind="stat",
            width=3,
            height=4,
        ),
        Panel(
            "Requests waiting",
            "none",
            "Requests that have no batch slot yet. Lasting: open Service; more replicas, or a larger batch.",
            [Query("sum(@requests_waiting)")],
            kind="stat",
            width=3,
            height=4,
            warn=1,
            alarm=20,
        ),
        Panel(
            "Worst queue time, p95",
            "s",
            "The service whose requests wait longest for their first step. High: see which one below, then Service.",
            [Query(f"max({quantile(0.95, '@request_queue_seconds')} >= 0)", optional=NO_LOOKUPS)],
            kind="stat",
            width=4,
            height=4,
            warn=0.5,
            alarm=2,
        ),
        Panel(
            "Failed requests",
            "percentunit",
            "Requests that failed by a fault of the server. Above zero: the servers' logs name each by its request id.",
            [Query(f"max({ERRORS})", optional=NO_REQUESTS)],
            kind="stat",
            width=4,
            height=4,
            warn=0.001,
            alarm=0.01,
        ),
        Panel(
            "Replica-hours",
            "none",
            "What this time range cost, to be multiplied by the price of a replica; each counts from when its model is "
            "loaded. By service in the table below. High at low load: lower minReplicas, or scale to zero "
            "(minReplicas: 0, idleSeconds).",
            [Query(f"sum({REPLICA_HOURS})")],
            kind="stat",
            width=4,
            height=4,
        ),
    ],
)

SERVICES = Row(
    "Services",
    [
        Panel(
            "Services",
            "none",
            "One row per service: replicas, load and health now, and what it cost in this time range. Sort by a column "
            "to find the one with problems; its name links to Service.",
            [
                Query(REPLICAS % "desired", "desired", NO_OPERATOR),
                Query(REPLICAS % "ready", "ready", NO_OPERATOR),
                Query(f"sum by ({WHO}) (@requests_running)", "running"),
                Query(f"sum by ({WHO}) (@requests_waiting)", "waiting", warn=1, alarm=20),
                Query(f"{quantile(0.95, '@request_queue_seconds')} >= 0", "queue p95", NO_LOOKUPS, unit="s",
                      warn=0.5, alarm=2),
                Query(rate("@generation_tokens_total"), "tokens/s", unit="short"),
                Query(HITS, "cache hits", NO_LOOKUPS, unit="percentunit"),
                Query(f"max by ({WHO}) (@kv_cache_utilization_ratio)", "KV in use", unit="percentunit", warn=0.9,
                      alarm=0.98),
                Query(ERRORS, "failed", NO_REQUESTS, unit="percentunit", warn=0.001, alarm=0.01),
                Query(REPLICA_HOURS, "replica-hours", unit="short"),
            ],
            kind="table",
            width=24,
            height=9,
        ),
    ],
)  # fmt: skip

LOAD = Row(
    "Load",
    [
        Panel(
            "Queue time, p95",
            "s",
            "Arrival to first step. Above the target (0.5 s unless set): more replicas (maxReplicas), a larger batch "
            "(maxNumSeqs), or smaller chunks of prompts (maxNumBatchedTokens).",
            [Query(quantile(0.95, "@request_queue_seconds"), NAMED)],
            warn=0.5,
            alarm=2,
        ),
        Panel(
            "Tokens per second",
            "short",
            "Prompt tokens computed or cached, and tokens generated. Flat while requests wait: replicas are full.",
            [
                Query(rate("@generation_tokens_total"), f"{NAMED} generated"),
                Query(rate("@prompt_tokens_total"), f"{NAMED} prompt"),
            ],
        ),
        Panel(
            "Prefix cache hit ratio",
            "percentunit",
            "Looked-up prompt tokens that were cached. Falls while KV memory is full: cached prefixes are evicted; "
            "give more memory (gpuMemoryUtilization) or replicas. Always low: prompts share no prefix.",
            [Query(HITS, NAMED, optional=NO_LOOKUPS)],
            maximum=1,
        ),
        Panel(
            "Failed requests",
            "percentunit",
            "Share of requests that failed by a fault of the server. Above zero: the servers' logs name each.",
            [Query(ERRORS, NAMED, optional=NO_REQUESTS)],
            warn=0.001,
            alarm=0.01,
        ),
        Panel(
            "Replicas",
            "none",
            "Desired and ready. Apart for longer than a model loads: the Ready condition of the service says why.",
            [
                Query(REPLICAS % "desired", f"{NAMED} desired", NO_OPERATOR),
                Query(REPLICAS % "ready", f"{NAMED} ready", NO_OPERATOR),
            ],
        ),
        Panel(
            "Requests finished per second",
            "reqps",
            "With any finish reason. Falls while requests wait: a replica is gone, or answers have become longer.",
            [Query(rate("@requests_total"), NAMED)],
        ),
    ],
)

FLEET = Dashboard(
    uid="pagetide-fleet",
    title="Pagetide / Fleet",
    description="All services side by side.",
    scope=SERVICE,
    variables=(NAMESPACE, NAME),
    rows=(OVERVIEW, SERVICES, LOAD),
)
