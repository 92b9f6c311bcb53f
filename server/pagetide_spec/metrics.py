"""Every metric of a server by name, kind, help and labels; dashboards, scaler and server take them from here."""

from __future__ import annotations

import dataclasses
from typing import Literal

PREFIX = "pagetide_"

# Seconds; the queue's first bucket is 1 ms, since scaling reads its p95 against targets well under a second.
LATENCY_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640)
TOKEN_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
SEQUENCE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclasses.dataclass(frozen=True)
class Metric:
    """One metric family. A server's and a gateway's carry the label `model_name` as well."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """The name with its prefix, as Prometheus sees it."""
        return PREFIX + self.name


def _gauge(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, "gauge", help, labels)


def _counter(name: str, help: str, *labels: str) -> Metric:
    return Metric(name, "counter", help, labels)


def _histogram(name: str, help: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(name, "histogram", help, (), buckets)


FINISH_REASONS = ("stop", "length", "abort", "error")

SERVER_METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        _gauge("requests_running", "Sequences in the running batch."),
        _gauge("requests_waiting", "Requests that wait for a batch slot."),
        _gauge("requests_swapped", "Sequences whose KV blocks are swapped to host memory."),
        _gauge("oldest_waiting_seconds", "Age of the oldest waiting request."),
        _gauge("kv_cache_utilization_ratio", "KV blocks in use over all KV blocks."),
        _gauge("kv_blocks", "KV blocks by state; free + cached + used is constant.", "state"),
        _gauge("batch_utilization_ratio", "Running sequences over those the engine could run now."),
        _gauge("batch_token_utilization_ratio", "Scheduled tokens over max_num_batched_tokens, recent steps."),
        _gauge("prefix_cache_hit_ratio", "Hit over queried prompt tokens of the last 60 seconds."),
        _gauge(
            "engine_info",
            "Constant 1; the labels say how the engine is set up.",
            "version",
            "dtype",
            "block_size",
            "device",
            "attention",
            "kv_cache_dtype",
            "num_blocks",
        ),
        _gauge("max_num_seqs", "Sequences that may run at once."),
        _gauge("kv_capacity_tokens", "Tokens that the KV cache holds."),
        _counter("prefix_cache_query_tokens_total", "Prompt tokens looked up in the prefix cache."),
        _counter("prefix_cache_hit_tokens_total", "Prompt tokens that hit the prefix cache."),
        _counter("prefix_tail_tokens_total", "Prompt tokens of shared prefixes that lie behind their last full block."),
        _counter(
            "prefix_shareable_tokens_total",
            "Prompt tokens of shared prefixes that an unlimited prefix cache would save with blocks of this size.",
            "block_size",
        ),
        _counter("prompt_tokens_total", "Prompt tokens of requests whose prefill is complete."),
        _counter("generation_tokens_total", "Tokens generated for clients."),
        _counter("prefills_total", "Requests whose prefill is complete."),
        _counter("decodes_total", "Generated tokens after each first one."),
        _counter("engine_steps_total", "Steps of the engine."),
        _counter("requests_total", "Finished requests.", "finish_reason"),
        _counter("preemptions_total", "Preempted sequences.", "mode"),
        _counter("swapped_blocks_total", "KV blocks copied between device and host.", "direction"),
        _counter("kv_block_allocations_total", "KV blocks allocated to sequences."),
        _counter("kv_block_allocation_failures_total", "Failed allocations of a KV block."),
        _counter("http_requests_total", "HTTP requests answered.", "route", "code"),
        # Of the GPUs that the engine may use, by NVML's index; absent without one, or without nvidia-ml-py.
        _gauge("gpu_utilization_ratio", "Share of the last second in which the GPU computed.", "gpu"),
        _gauge("gpu_memory_used_bytes", "GPU memory in use, by all processes.", "gpu"),
        _gauge("gpu_memory_total_bytes", "Size of the GPU's memory.", "gpu"),
        _histogram("request_queue_seconds", "Arrival to first scheduled step.", LATENCY_BUCKETS),
        _histogram("time_to_first_token_seconds", "Arrival to first token.", LATENCY_BUCKETS),
        _histogram("inter_token_seconds", "Time between two tokens of one sequence.", LATENCY_BUCKETS),
        _histogram("request_seconds", "Arrival to last token.", LATENCY_BUCKETS),
        _histogram("request_prefill_seconds", "First scheduled step to first token.", LATENCY_BUCKETS),
        _histogram("request_decode_seconds", "First to last token of a request.", LATENCY_BUCKETS),
        _histogram("request_prompt_tokens", "Prompt length of finished requests.", TOKEN_BUCKETS),
        _histogram("request_generation_tokens", "Answer length of finished requests.", TOKEN_BUCKETS),
        _histogram("engine_step_seconds", "Duration of one engine step.", LATENCY_BUCKETS),
        _histogram("engine_step_tokens", "Tokens computed in one step.", TOKEN_BUCKETS),
        _histogram("engine_step_sequences", "Sequences in one step.", SEQUENCE_BUCKETS),
    )
}

# The gateway's own; `model_name` is empty for a request that names no known model.
GATEWAY_METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        _counter("gateway_requests_total", "Requests answered, by response status.", "code"),
        _counter(
            "gateway_retries_total", "Attempts that failed before the first byte and were retried on another replica."
        ),
        _counter("gateway_broken_streams_total", "Streams cut off by the replica after the first byte."),
        _counter(
            "gateway_client_disconnects_total", "Requests whose client disconnected before the answer was complete."
        ),
        _counter("gateway_routed_total", "Attempts by the reason for the choice of replica.", "reason"),
        _counter("gateway_held_total", "Requests held until a replica is ready, by outcome.", "outcome"),
        _counter("gateway_limited_total", "Requests refused for a limit of their API key.", "limit"),
        _counter("gateway_ejections_total", "Times a replica was ejected because it failed or stalled."),
        _gauge("gateway_requests_held", "Requests that wait for a replica now."),
        _gauge("gateway_replica_requests_in_flight", "Requests at one replica now.", "replica"),
        _gauge("gateway_requests_in_flight", "Requests sent to a replica and not yet answered in full."),
        _gauge("gateway_replicas", "Replicas by state: ready, draining, ejected or unready.", "state"),
        _histogram("gateway_first_byte_seconds", "Arrival to the first byte of the replica's answer.", LATENCY_BUCKETS),
    )
}

# The operator's own. `namespace` and `service` are those of an InferenceService.
_SERVICE = ("namespace", "service")
OPERATOR_METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        _counter("operator_reconciles_total", "Reconciles of a service, by outcome.", "outcome"),
        _histogram("operator_reconcile_seconds", "Duration of one reconcile.", LATENCY_BUCKETS),
        _counter(
            "operator_relist_corrections_total", "Services with changes that the watches had not reported.", "kind"
        ),
        _gauge("operator_queue_length", "Services that wait to be reconciled."),
        _gauge("operator_services", "InferenceServices that are known."),
        _gauge("operator_leader", "1 while this process is the leader."),
        _gauge("operator_watch_age_seconds", "Time since the last watch event of a kind.", "kind"),
        _counter("operator_scrapes_total", "Scrapes of a replica's metrics, by outcome.", "outcome"),
        _counter(
            "operator_scale_changes_total",
            "Changes of a service's number of replicas, by direction and the signal that asked for the most.",
            *_SERVICE,
            "direction",
            "winner",
        ),
        _gauge("operator_desired_replicas", "Replicas that a scaled service should have.", *_SERVICE),
        _gauge("operator_asked_replicas", "Replicas that each signal of load asks for.", *_SERVICE, "signal"),
        _gauge(
            "operator_service_replicas", "Replicas by state: desired, ready, starting or draining.", *_SERVICE, "state"
        ),
        _gauge(
            "operator_service_condition",
            "1 where the condition of a service holds, 0 where not; the reason is a label.",
            *_SERVICE,
            "condition",
            "reason",
        ),
    )
}

# NVIDIA's DCGM exporter; not ours, and shown only where it runs.
DCGM_METRICS: dict[str, str] = {
    "DCGM_FI_DEV_GPU_UTIL": "Percentage of time in which the GPU computed.",
    "DCGM_FI_DEV_FB_USED": "MiB of GPU memory in use.",
    "DCGM_FI_DEV_FB_FREE": "MiB of GPU memory that are free.",
}


# ---- the same values under vLLM's names (`--metrics-compat vllm`)

# vLLM's name -> (ours, {our label: vLLM's label}). The kind and the buckets are those of our metric. A label whose name
# is "" is left out, and values that differ by nothing else are added up.
VLLM_METRICS: dict[str, tuple[str, dict[str, str]]] = {
    "vllm:num_requests_running": ("requests_running", {}),
    "vllm:num_requests_waiting": ("requests_waiting", {}),
    "vllm:num_requests_swapped": ("requests_swapped", {}),
    "vllm:kv_cache_usage_perc": ("kv_cache_utilization_ratio", {}),
    "vllm:gpu_cache_usage_perc": ("kv_cache_utilization_ratio", {}),
    "vllm:prompt_tokens_total": ("prompt_tokens_total", {}),
    "vllm:generation_tokens_total": ("generation_tokens_total", {}),
    "vllm:prefix_cache_queries_total": ("prefix_cache_query_tokens_total", {}),
    "vllm:prefix_cache_hits_total": ("prefix_cache_hit_tokens_total", {}),
    "vllm:request_success_total": ("requests_total", {"finish_reason": "finished_reason"}),
    "vllm:num_preemptions_total": ("preemptions_total", {"mode": ""}),
    "vllm:request_queue_time_seconds": ("request_queue_seconds", {}),
    "vllm:time_to_first_token_seconds": ("time_to_first_token_seconds", {}),
    "vllm:inter_token_latency_seconds": ("inter_token_seconds", {}),
    "vllm:time_per_output_token_seconds": ("inter_token_seconds", {}),
    "vllm:e2e_request_latency_seconds": ("request_seconds", {}),
    "vllm:request_prefill_time_seconds": ("request_prefill_seconds", {}),
    "vllm:request_decode_time_seconds": ("request_decode_seconds", {}),
    "vllm:request_prompt_tokens": ("request_prompt_tokens", {}),
    "vllm:request_generation_tokens": ("request_generation_tokens", {}),
    "vllm:iteration_tokens_total": ("engine_step_tokens", {}),
    # From this the Gateway API Inference Extension's endpoint picker learns how much each replica can cache.
    "vllm:cache_config_info": (
        "engine_info",
        {
            "num_blocks": "num_gpu_blocks",
            "kv_cache_dtype": "cache_dtype",
            "version": "",
            "dtype": "",
            "device": "",
            "attention": "",
        },
    ),
}
