"""*Gateway*: what clients get, and where their requests go."""

from __future__ import annotations

from .model import Dashboard, Panel, Query, Row, Variable
from .queries import MODEL, PLACE, SERVED, quantile, rate

# The namespace is the gateway's own.
NAMESPACE = Variable("namespace", "namespace", ("gateway_requests_in_flight",))
NAME = Variable("model", "model_name", ("gateway_requests_in_flight",), PLACE)

NO_ANSWER = "while nothing is answered"
# A model by the name that clients ask for.
NAMED = "{{namespace}}/{{model_name}}"
ANSWERED = rate("@gateway_requests_total", SERVED)
FAILED = rate('@gateway_requests_total{code=~"5.."}', SERVED)

CLIENTS = Row(
    "Clients",
    [
        Panel(
            "Requests per second, by status",
            "reqps",
            "499: the client disconnected first. 429: a limit of its key, or a full queue. 503: no replica, or too "
            "many wait for one. 502: a replica closed the connection.",
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
                Query(quantile(0.5, "@gateway_first_byte_seconds", SERVED), f"{NAMED} p50", NO_ANSWER),
                Query(quantile(0.95, "@gateway_first_byte_seconds", SERVED), f"{NAMED} p95", NO_ANSWER),
            ],
            warn=1,
            alarm=5,
        ),
        Panel(
            "Held requests",
            "none",
            "Requests held until a replica is ready. Growing: no replica becomes ready; see Operator.",
            [Query(f"sum by ({SERVED}) (@gateway_requests_held)", NAMED)],
            warn=10,
        ),
        Panel(
            "Held requests by outcome",
            "reqps",
            "released: a replica became ready. Anything else: the client got a 503; keep a replica (minReplicas: 1).",
            [Query(rate("@gateway_held_total", "outcome"), "{{outcome}}")],
        ),
        Panel(
            "Refused for a limit of the key",
            "reqps",
            "Clients above the limits of their key, for all models: raise the key's maxConcurrent or "
            "requestsPerMinute, or talk to its owner.",
            [Query(rate("@gateway_limited_total", "limit"), "{{limit}}", scope=PLACE)],
        ),
    ],
)

ROUTING = Row(
    "Routing",
    [
        Panel(
            "Routing reasons per second",
            "reqps",
            "prefix: a replica has the prompt's prefix cached. session: that of its x-session-id. load: the least busy "
            "one. hash: an unknown prefix. only: there is no other. Few by prefix though prompts share prefixes: "
            "caches are too small for them (gpuMemoryUtilization).",
            [Query(rate("@gateway_routed_total", "reason"), "{{reason}}")],
            stack=True,
        ),
        Panel(
            "Requests at each replica",
            "none",
            "In flight now, through all gateways. Uneven: long requests, or a prefix that many share.",
            [Query(f"sum by ({SERVED}, replica) (@gateway_replica_requests_in_flight)", f"{NAMED} {{{{replica}}}}")],
            stack=True,
        ),
        Panel(
            "Share of each replica",
            "percentunit",
            "Its part of the model's requests in flight.",
            [
                Query(
                    f"sum by ({SERVED}, replica) (@gateway_replica_requests_in_flight) "
                    f"/ on ({SERVED}) group_left () (sum by ({SERVED}) (@gateway_replica_requests_in_flight) > 0)",
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
            "As gateways see them. ejected: after failures. unready for long: its pod's log says why.",
            [Query(f"max by ({SERVED}, state) (@gateway_replicas)", f"{NAMED} {{{{state}}}}")],
        ),
        Panel(
            "Retries and broken streams per second",
            "reqps",
            "Clients do not see retries, but broken streams. Either: a replica restarts, or its network fails.",
            [
                Query(rate("@gateway_retries_total", SERVED), f"{NAMED} retries"),
                Query(rate("@gateway_broken_streams_total", SERVED), f"{NAMED} broken streams"),
            ],
            warn=0.1,
        ),
        Panel(
            "Client disconnects and ejected replicas",
            "ops",
            "Clients that disconnect before the end: answers come too late for them, see the time to the first byte.",
            [
                Query(rate("@gateway_client_disconnects_total", SERVED), f"{NAMED} client disconnects"),
                Query(rate("@gateway_ejections_total", SERVED), f"{NAMED} ejected replicas"),
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
