"""*Scaling*: what the autoscaler decides, why, and what holds it back."""

from __future__ import annotations

from .fleet import NO_LOOKUPS, REPLICAS
from .model import Dashboard, Panel, Query, Row, Variable
from .queries import EVERYTHING, NAMED, PLACE, SERVICE, WHO, quantile, rate

# The operator has series of every service, also of one at zero replicas, which has no server to scrape.
NAMESPACE = Variable("namespace", "namespace", ("operator_service_replicas",))
NAME = Variable("service", "service", ("operator_service_replicas",), PLACE)
NOT_SCALED = "where no service has spec.autoscaling"
NOT_LIMITED = "while nothing limits it"

DECISIONS = Row(
    "Decisions",
    [
        Panel(
            "Desired, ready, starting, draining",
            "none",
            "Ready below desired for longer than a model loads: the Ready condition says why. Draining for long: "
            "streams take their time, up to drainSeconds.",
            [Query(REPLICAS % state, f"{NAMED} {state}") for state in ("desired", "ready", "starting", "draining")],
            width=12,
            height=8,
        ),
        Panel(
            "What each signal asks for",
            "none",
            "The largest wins. batch: batch slots are taken (maxNumSeqs). queue: requests wait "
            "(targets.queueTimeSeconds). memory: KV tokens (gpuMemoryUtilization, maxModelLen). prompt: uncached "
            "prompt tokens.",
            [Query(f"max by ({WHO}, signal) (@operator_asked_replicas)", f"{NAMED} {{{{signal}}}}", NOT_SCALED)],
            width=12,
            height=8,
        ),
        Panel(
            "Changes by direction and winner",
            "none",
            "Changes of the number of replicas in ten minutes. Alternating up and down: raise "
            "behavior.scaleDown.stabilizationWindowSeconds.",
            [
                Query(
                    f"sum by ({WHO}, direction, winner) (increase(@operator_scale_changes_total[10m]))",
                    f"{NAMED} {{{{direction}}}} by {{{{winner}}}}",
                    NOT_SCALED,
                )
            ],
            width=12,
        ),
        Panel(
            "What limits scaling",
            "none",
            "1 while the condition ScalingLimited holds, by its reason. MaxReplicas: raise autoscaling.maxReplicas. "
            "CacheGuard, StabilizationWindow: scaling down waits, on purpose. ScalingPolicy: behavior allows no more.",
            [
                Query(
                    f'max by ({WHO}, reason) (@operator_service_condition{{condition="ScalingLimited"}}) == 1',
                    f"{NAMED} {{{{reason}}}}",
                    NOT_LIMITED,
                )
            ],
            width=12,
            maximum=1,
        ),
    ],
)

SIGNALS = Row(
    "Signals",
    [
        Panel(
            "Queue time, p95",
            "s",
            "As the signal `queue` uses it, beside the oldest waiting request. Above the target: replicas are added.",
            [
                Query(quantile(0.95, "@request_queue_seconds"), f"{NAMED} p95", NO_LOOKUPS),
                Query(f"max by ({WHO}) (@oldest_waiting_seconds)", f"{NAMED} oldest"),
            ],
            warn=0.5,
        ),
        Panel(
            "Requests over batch slots",
            "percentunit",
            "Running, waiting and swapped over maxNumSeqs, as the signal `batch` uses it where KV memory is no limit.",
            [
                Query(
                    f"sum by ({WHO}) (@requests_running + @requests_waiting + @requests_swapped) "
                    f"/ sum by ({WHO}) (@max_num_seqs)",
                    NAMED,
                )
            ],
            warn=0.8,
            alarm=1,
        ),
        Panel(
            "KV memory in use",
            "percentunit",
            "As the signal `memory` uses it.",
            [Query(f"avg by ({WHO}) (@kv_cache_utilization_ratio)", NAMED)],
            warn=0.9,
            maximum=1,
        ),
        Panel(
            "Uncached prompt tokens per second",
            "short",
            "What the signal `prompt` counts: prompt tokens that do not hit the prefix cache.",
            [Query(f"{rate('@prefix_cache_query_tokens_total')} - {rate('@prefix_cache_hit_tokens_total')}", NAMED)],
        ),
        Panel(
            "Scrapes of replicas",
            "ops",
            "Of all services. Failed ones: replicas that the operator cannot reach; a NetworkPolicy, or a replica that "
            "hangs.",
            [Query(rate("@operator_scrapes_total", "outcome"), "{{outcome}}", scope=EVERYTHING)],
        ),
        Panel(
            "Scaling active",
            "none",
            "1 where load decides. 0 with NoMetrics: no ready replica can be scraped, and nothing is changed: let "
            "the operator reach port 8000 of the replicas.",
            [
                Query(
                    f"max by ({WHO}, reason) "
                    '(@operator_service_condition{condition="ScalingActive",reason!="FixedReplicas"})',
                    f"{NAMED} {{{{reason}}}}",
                    NOT_SCALED,
                )
            ],
            maximum=1,
        ),
    ],
)

SCALING = Dashboard(
    uid="pagetide-scaling",
    title="Pagetide / Scaling",
    description="Decisions of the autoscaler with what each signal asked for and what limited it.",
    scope=SERVICE,
    variables=(NAMESPACE, NAME),
    rows=(DECISIONS, SIGNALS),
)
