"""*Service*: one service in depth; which resource is the bottleneck."""

from __future__ import annotations

from .fleet import HITS, NAME, NAMESPACE, NO_LOOKUPS
from .model import Dashboard, Panel, Query, Row
from .queries import EACH, NAMED, REPLICA, SERVICE, WHO, quantile, rate

NO_TOKENS = "while nothing is generated"
NO_GPU = "where the servers have no GPU"
NO_DCGM = "where NVIDIA's DCGM exporter does not run"
# NVIDIA's exporter has series of every pod with a GPU; those of the chosen services have metrics of ours, too.
OF_OURS = "and on (namespace, pod) @requests_running"
SHARES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))


def _quantiles(histogram: str, optional: str = "") -> list[Query]:
    return [Query(quantile(share, f"@{histogram}"), f"{NAMED} {name}", optional)
            for share, name in SHARES]  # fmt: skip


def _each(gauge: str) -> list[Query]:
    return [Query(f"sum by ({EACH}) (@{gauge})", REPLICA)]


LATENCY = Row(
    "Latency",
    [
        Panel(
            "Time to first token",
            "s",
            "Arrival to first token: queue time and prefill. High with a high queue time: see there. High without: "
            "prompts are long; more cache hits or a larger maxNumBatchedTokens shorten their prefill.",
            _quantiles("time_to_first_token_seconds", NO_TOKENS),
            warn=1,
            alarm=5,
        ),
        Panel(
            "Time between tokens",
            "s",
            "High: steps are long. Lower maxNumBatchedTokens (prompts then delay decodes less), or maxNumSeqs.",
            _quantiles("inter_token_seconds", NO_TOKENS),
            warn=0.1,
            alarm=0.5,
        ),
        Panel(
            "Queue time",
            "s",
            "Arrival to first step. High: all batch slots are taken (batch utilization at 1: raise maxNumSeqs, or "
            "replicas) or KV memory is short (KV blocks: raise gpuMemoryUtilization, or replicas).",
            _quantiles("request_queue_seconds", NO_LOOKUPS),
            warn=0.5,
            alarm=2,
        ),
    ],
)

BATCH = Row(
    "Batch",
    [
        Panel(
            "Running, waiting, swapped",
            "none",
            "Waiting for long: see queue time. Swapped above zero: KV memory is short; lower maxNumSeqs or add memory.",
            [
                Query(f"sum by ({WHO}) (@requests_running)", f"{NAMED} running"),
                Query(f"sum by ({WHO}) (@requests_waiting)", f"{NAMED} waiting"),
                Query(f"sum by ({WHO}) (@requests_swapped)", f"{NAMED} swapped"),
            ],
        ),
        Panel(
            "Batch utilization",
            "percentunit",
            "Running sequences over those that can run now. At 1 while requests wait: replicas are full. Low while "
            "requests wait: the token budget is the limit.",
            _each("batch_utilization_ratio"),
            warn=0.8,
            alarm=1,
            maximum=1,
        ),
        Panel(
            "Token budget utilization",
            "percentunit",
            "Tokens of recent steps over maxNumBatchedTokens. Near 1: prompts fill every step; raise "
            "maxNumBatchedTokens for throughput, add replicas for latency.",
            _each("batch_token_utilization_ratio"),
            warn=0.9,
            maximum=1,
        ),
        Panel(
            "Prefills and decodes per second",
            "ops",
            "Finished prompts against generated tokens after the first. Prefills rise while decodes fall: prompts "
            "delay decodes; lower maxNumBatchedTokens.",
            [
                Query(rate("@prefills_total"), f"{NAMED} prefills"),
                Query(rate("@decodes_total"), f"{NAMED} decodes"),
            ],
        ),
        Panel(
            "Step duration",
            "s",
            "One step of the engine. Its p99 bounds the time between tokens; large beside p50: long prompts share "
            "steps with decodes.",
            _quantiles("engine_step_seconds", NO_TOKENS),
        ),
        Panel(
            "Sequences and tokens in a step",
            "none",
            "Averages. Few sequences though requests wait: KV memory or the token budget is the limit.",
            [
                Query(f"{rate('@engine_step_sequences_sum')} / ({rate('@engine_step_sequences_count')} > 0)",
                      f"{NAMED} sequences", NO_TOKENS),
                Query(f"{rate('@engine_step_tokens_sum')} / ({rate('@engine_step_tokens_count')} > 0)",
                      f"{NAMED} tokens", NO_TOKENS),
            ],
        ),
    ],
)  # fmt: skip

MEMORY = Row(
    "KV memory and cache",
    [
        Panel(
            "KV blocks by state",
            "none",
            "Used blocks belong to running sequences, cached ones wait to be hit or evicted. No free and few cached: "
            "raise gpuMemoryUtilization, lower maxModelLen or maxNumSeqs, or add replicas.",
            [Query("sum by (state) (@kv_blocks)", "{{state}}")],
            stack=True,
        ),
        Panel(
            "KV memory in use",
            "percentunit",
            "Blocks of running sequences over all. Near 1: preemptions follow.",
            _each("kv_cache_utilization_ratio"),
            warn=0.9,
            alarm=0.98,
            maximum=1,
        ),
        Panel(
            "Prefix cache hit ratio",
            "percentunit",
            "Low though prompts share prefixes: they are evicted (see blocks by state), end within a block (smaller "
            "blockSize), or go to other replicas (Gateway, routing reasons).",
            [Query(HITS, NAMED, NO_LOOKUPS), *_each("prefix_cache_hit_ratio")],
            maximum=1,
        ),
        Panel(
            "Preemptions per second",
            "ops",
            "Preempted sequences. Lasting: too many run for this memory; lower maxNumSeqs or add "
            "memory. More by recompute than by swap: raise swapSpaceGib.",
            [Query(rate("@preemptions_total", "mode"), "{{mode}}")],
            warn=0.1,
            alarm=1,
        ),
        Panel(
            "Blocks swapped per second",
            "ops",
            "Between device and host memory. High: the bus is busy with what memory cannot hold; lower maxNumSeqs.",
            [Query(rate("@swapped_blocks_total", "direction"), "{{direction}}")],
        ),
        Panel(
            "Block allocations and failures",
            "ops",
            "A failure: no block was available, not even by eviction. Above zero: see preemptions.",
            [
                Query(rate("@kv_block_allocations_total"), f"{NAMED} allocations"),
                Query(rate("@kv_block_allocation_failures_total"), f"{NAMED} failures"),
            ],
        ),
    ],
)

REQUESTS = Row(
    "Requests",
    [
        Panel(
            "Finish reasons",
            "reqps",
            "length: max_tokens or maxModelLen was reached. abort: its client disconnected; many: clients time out, "
            "see queue time. error: the server's logs name each.",
            [Query(rate("@requests_total", "finish_reason"), "{{finish_reason}}")],
            stack=True,
        ),
        Panel(
            "Prompt lengths",
            "short",
            "How many prompts fall in which bucket of tokens. Longer than expected: the longest sets maxModelLen.",
            [Query(rate("@request_prompt_tokens_bucket", "le"), "{{le}}")],
            kind="heatmap",
        ),
        Panel(
            "Answer lengths",
            "short",
            "How many answers fall in which bucket of tokens.",
            [Query(rate("@request_generation_tokens_bucket", "le"), "{{le}}")],
            kind="heatmap",
        ),
        Panel(
            "Responses by status",
            "reqps",
            "429: the queue is full (maxQueueLen; add replicas). 503: loading or draining. 400: the client's mistake.",
            [Query(rate("@http_requests_total", "code"), "{{code}}")],
        ),
        Panel(
            "Age of the oldest waiting request",
            "s",
            "Grows while everything else is quiet: the engine is stuck; its liveness probe will restart it.",
            _each("oldest_waiting_seconds"),
            warn=2,
            alarm=10,
        ),
        Panel(
            "Time of a whole request",
            "s",
            "Arrival to last token; mostly the answer's length times the time between tokens.",
            _quantiles("request_seconds", NO_TOKENS),
        ),
    ],
)

REPLICAS = Row(
    "Replicas",
    [
        Panel(
            "Running, by replica",
            "none",
            "Uneven: a session or a shared prefix sends requests to one replica; see Gateway, routing reasons.",
            _each("requests_running"),
        ),
        Panel(
            "Tokens per second, by replica",
            "short",
            "A replica below the others at the same load has a slower or shared device.",
            [Query(rate("@generation_tokens_total", EACH), REPLICA)],
        ),
        Panel(
            "Skew of running requests",
            "none",
            "Busiest replica over the average. Above 2 for long: requests bypass the gateway, or it estimates badly.",
            [Query(f"max by ({WHO}) (@requests_running) / (avg by ({WHO}) (@requests_running) > 0)", NAMED,
                   "while nothing runs")],
            warn=2,
        ),
    ],
)  # fmt: skip

GPU = Row(
    "GPU",
    [
        Panel(
            "GPU utilization",
            "percentunit",
            "Share of time in which the GPU computed. Low while requests wait: the batch is small; raise maxNumSeqs.",
            [
                Query(f"avg by ({EACH}, gpu) (@gpu_utilization_ratio)", f"{REPLICA} {{{{gpu}}}}", NO_GPU),
                Query(f"avg by (namespace, pod, gpu) (@DCGM_FI_DEV_GPU_UTIL {OF_OURS}) / 100",
                      f"{REPLICA} {{{{gpu}}}} (DCGM)", NO_DCGM),
            ],
            maximum=1,
        ),
        Panel(
            "GPU memory in use",
            "percentunit",
            "Reserved at start (gpuMemoryUtilization), so it is flat. Rising towards 1: another process uses the GPU.",
            [
                Query(f"sum by ({EACH}, gpu) (@gpu_memory_used_bytes) / sum by ({EACH}, gpu) "
                      "(@gpu_memory_total_bytes)", f"{REPLICA} {{{{gpu}}}}", NO_GPU),
                Query(f"sum by (namespace, pod, gpu) (@DCGM_FI_DEV_FB_USED {OF_OURS}) / (sum by (namespace, pod, gpu) "
                      "(@DCGM_FI_DEV_FB_USED) + sum by (namespace, pod, gpu) (@DCGM_FI_DEV_FB_FREE))",
                      f"{REPLICA} {{{{gpu}}}} (DCGM)", NO_DCGM),
            ],
            warn=0.97,
            maximum=1,
        ),
        Panel(
            "Compute against memory",
            "percentunit",
            "GPU busy, and KV memory in use. Memory full and compute idle: memory is the limit (smaller maxModelLen, "
            "quantization). Compute busy and memory free: compute is; more replicas.",
            [
                Query(f"avg by ({WHO}) (@gpu_utilization_ratio)", f"{NAMED} compute", NO_GPU),
                Query(f"avg by ({WHO}) (@kv_cache_utilization_ratio)", f"{NAMED} KV memory"),
            ],
            maximum=1,
        ),
    ],
)  # fmt: skip

SERVICE_BOARD = Dashboard(
    uid="pagetide-service",
    title="Pagetide / Service",
    description="One service in depth: latency, batch, KV memory, requests, replicas, GPU. Where several are selected, "
    "a panel whose legend names no service shows their sum.",
    scope=SERVICE,
    variables=(NAMESPACE, NAME),
    rows=(LATENCY, BATCH, MEMORY, REQUESTS, REPLICAS, GPU),
)
