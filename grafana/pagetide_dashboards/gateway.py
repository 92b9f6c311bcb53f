"""*Gateway*: what clients get, and where their requests go."""

from __future__ import annotations

from .model import Dashboard, Panel, Query, Row, Variable
from .queries import MODEL, PLACE, quantile, rate

# The namespace is the gateway's own.
NAMESPACE = Variable("namespace", "namespace", ("gateway_requests_in_flight",))
NAME = Variable("model", "model_name", ("gateway_requests_in_flight",), PLACE)

NO_ANSWER = "while nothing is answered"
# The path of a model is known here by its name, which is what clients ask for.
# Gateways of several namespaces may each have one of that name.
WHO = "namespace, model_name"
NAMED = "{{namespace}}/{{model_name}}"
ANSWERED = rate("@gateway_requests_total", WHO)
FAILED = rate('@gateway_requests_total{code=~"5.."}', WHO)

CLIENTS = Row(
    "Clients",
    [
        Panel(
            "Requests a second, by status",
            "reqps",
            "499: the client left first. 429: a limit of its key, or a full queue. 503: no replica, or too many wait "
            "for one. 502: a replica broke off.",
            [Query(rate("@gateway_requests_total", "code"), "{{code}}")],
            stack=True,
        ),
        Panel(
            "Failed requests",
            "percentunit",
            "Share of answers with a 5xx status. Above zero: the gateway's log names replica and reason.",
            [
                Query(
                    f"({FAILED} or 0 * {ANSWERED}) / ({ANSWERED} > 0)",
                    NAMED,
                    NO_ANSWER,
                )
            ],
            warn=0.001,
            alarm=0.01,
        ),
        Panel(
            "Time to the first byte",
            "s",
            "Arrival to the first byte of a replica's answer: what a client of a stream waits. High with a low time to "
            "first token at the servers: requests are held, or the gateway is busy; add gateways.",
            [
                Query(quantile(0.5, "@gateway_first_byte_seconds", WHO), f"{NAMED} p50", NO_ANSWER),
                Query(quantile(0.95, "@gateway_first_byte_seconds", WHO), f"{NAMED} p95", NO_ANSWER),
            ],
            warn=1,
            alarm=5,
        ),
        Panel(
            "Held requests",
            "none",
            "Requests that wait for a replica to wake. Growing: replicas do not come; see Operator.",
            [Query(f"sum by ({WHO}) (@gateway_requests_held)", NAMED)],
            warn=10,
        ),
        Panel(
            "How holding ended",
            "reqps",
            "released: a replica came. Anything else: the client got a 503; let a replica stay (minReplicas: 1).",
            [Query(rate("@gateway_held_total", "outcome"), "{{outcome}}")],
        ),
        Panel(
            "Refused for a limit of the key",
            "reqps",
            "Clients above what their key may do, whatever model they ask for: raise the key's maxConcurrent or "
            "requestsPerMinute, or talk to its owner.",
            [Query(rate("@gateway_limited_total", "limit"), "{{limit}}", scope=PLACE)],
        ),
    ],
)

ROUTING = Row(
    "Routing",
    [
        Panel(
            "Routing reasons a second",
            "reqps",
            "prefix: a replica has the prompt's beginning. session: that of its x-session-id. load: the least busy "
            "one. hash: an unknown beginning. only: there is no other. Few by prefix though prompts share beginnings: "
            "caches are too small for them (gpuMemoryUtilization).",
            [Query(rate("@gateway_routed_total", "reason"), "{{reason}}")],
            stack=True,
        ),
        Panel(
            "Requests at each replica",
            "none",
            "In flight now, through all gateways. Uneven: long requests, or a beginning that many share.",
            [Query(f"sum by ({WHO}, replica) (@gateway_replica_requests_in_flight)", f"{NAMED} {{{{replica}}}}")],
            stack=True,
        ),
        Panel(
            "Share of each replica",
            "percentunit",
            "Its part of the model's requests in flight.",
            [
                Query(
                    f"sum by ({WHO}, replica) (@gateway_replica_requests_in_flight) "
                    f"/ on ({WHO}) group_left () (sum by ({WHO}) (@gateway_replica_requests_in_flight) > 0)",
                    f"{NAMED} {{{{replica}}}}",
                    "while nothing is in flight",
                )
            ],
            maximum=1,
        ),
    ],
)

TROUBLE = Row(
    "Trouble",
    [
        Panel(
            "Replicas by state",
            "none",
            "As gateways see them. ejected: set aside after failures. unready for long: its pod's log says why.",
            [Query(f"max by ({WHO}, state) (@gateway_replicas)", f"{NAMED} {{{{state}}}}")],
        ),
        Panel(
            "Retries and broken streams a second",
            "reqps",
            "Clients do not see retries, but broken streams. Either: a replica restarts, or its network fails.",
            [
                Query(rate("@gateway_retries_total", WHO), f"{NAMED} retries"),
                Query(rate("@gateway_broken_streams_total", WHO), f"{NAMED} broken streams"),
            ],
            warn=0.1,
        ),
        Panel(
            "Clients that left, and replicas set aside",
            "ops",
            "Clients that leave before the end: answers come too late for them, see the time to the first byte.",
            [
                Query(rate("@gateway_client_disconnects_total", WHO), f"{NAMED} clients left"),
                Query(rate("@gateway_ejections_total", WHO), f"{NAMED} replicas set aside"),
            ],
        ),
    ],
)

GATEWAY = Dashboard(
    uid="pagetide-gateway",
    title="Pagetide / Gateway",
    description="What clients get, and where their requests go.",
    scope=MODEL,
    variables=(NAMESPACE, NAME),
    rows=(CLIENTS, ROUTING, TROUBLE),
)
