"""*Operator*: whether the control plane does its work."""

from __future__ import annotations

from .model import Dashboard, Panel, Query, Row
from .queries import EVERYTHING, REPLICA, quantile, rate

WORK = Row(
    "Work",
    [
        Panel(
            "Leader",
            "none",
            "Leaders: 1. 0: no operator acts, see the runbook. More for longer than a scrape: clocks or the "
            "Lease are wrong.",
            [Query("sum(@operator_leader)")],
            kind="stat",
            width=4,
            height=7,
        ),
        Panel(
            "Services",
            "none",
            "InferenceServices that the operator knows.",
            [Query("max(@operator_services)")],
            kind="stat",
            width=4,
            height=7,
        ),
        Panel(
            "Reconciles per second",
            "ops",
            "ok and failed. Many at rest: something keeps changing a child; see its field managers.",
            [Query(rate("@operator_reconciles_total", "outcome"), "{{outcome}}")],
        ),
        Panel(
            "Failed reconciles",
            "percentunit",
            "Above zero: the API server refuses or does not answer; the operator's log has the request.",
            [
                Query(
                    'sum(rate(@operator_reconciles_total{outcome="error"}[$__rate_interval])) '
                    "/ (sum(rate(@operator_reconciles_total[$__rate_interval])) > 0)",
                    "failed",
                    "while no service is reconciled",
                )
            ],
            warn=0.01,
            alarm=0.1,
        ),
        Panel(
            "Duration of a reconcile",
            "s",
            "High: the API server is slow, or refuses bursts of requests.",
            [
                Query(quantile(share, "@operator_reconcile_seconds", "job"), name, "while no service is reconciled")
                for share, name in ((0.5, "p50"), (0.99, "p99"))
            ],
            warn=1,
            alarm=10,
        ),
        Panel(
            "Services that wait to be reconciled",
            "none",
            "Growing: reconciles take too long; see their duration.",
            [Query("max by (namespace, pod) (@operator_queue_length)", REPLICA)],
            warn=50,
        ),
        Panel(
            "Services not ready",
            "none",
            "By the reason of their condition Ready; docs/troubleshooting.md explains each.",
            [
                Query(
                    'count by (reason) (max by (namespace, service, reason) '
                    '(@operator_service_condition{condition="Ready"}) == 0)',
                    "{{reason}}",
                    "while all are ready",
                )
            ],
            warn=1,
        ),
    ],
)  # fmt: skip

SIGHT = Row(
    "Sight",
    [
        Panel(
            "Age of each watch",
            "s",
            "Time since the last event of a kind. Long at rest is fine; long while services change: the watch is dead, "
            "and the next relist restarts the operator.",
            [Query("min by (kind) (@operator_watch_age_seconds)", "{{kind}}")],
            width=12,
        ),
        Panel(
            "Corrections by relists",
            "none",
            "Services with changes that the watches had not reported, in ten minutes. Repeated: watches miss events.",
            [Query("sum by (kind) (increase(@operator_relist_corrections_total[10m]))", "{{kind}}")],
            width=12,
            warn=1,
        ),
    ],
)

OPERATOR = Dashboard(
    uid="pagetide-operator",
    title="Pagetide / Operator",
    description="Whether the control plane does its work.",
    scope=EVERYTHING,
    variables=(),
    rows=(WORK, SIGHT),
)
