"""What a server and a gateway answer `pagetide top`."""

from __future__ import annotations

import re

BEGIN = """
pagetide_requests_running{model_name="m"} 1
pagetide_requests_waiting{model_name="m"} 0
pagetide_requests_swapped{model_name="m"} 0
pagetide_kv_cache_utilization_ratio{model_name="m"} 0.1
pagetide_kv_blocks{model_name="m",state="free"} 90
pagetide_kv_blocks{model_name="m",state="used"} 10
pagetide_batch_utilization_ratio{model_name="m"} 0.2
pagetide_engine_steps_total{model_name="m"} 10
pagetide_generation_tokens_total{model_name="m"} 100
pagetide_prefix_cache_query_tokens_total{model_name="m"} 100
pagetide_prefix_cache_hit_tokens_total{model_name="m"} 0
pagetide_preemptions_total{mode="swap",model_name="m"} 0
pagetide_preemptions_total{mode="recompute",model_name="m"} 0
pagetide_requests_total{finish_reason="stop",model_name="m"} 5
pagetide_requests_total{finish_reason="abort",model_name="m"} 0
pagetide_time_to_first_token_seconds_bucket{le="0.5",model_name="m"} 1
pagetide_time_to_first_token_seconds_bucket{le="1.0",model_name="m"} 1
pagetide_time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 1
pagetide_time_to_first_token_seconds_count{model_name="m"} 1
pagetide_time_to_first_token_seconds_sum{model_name="m"} 0.2
pagetide_gpu_utilization_ratio{gpu="0",model_name="m"} 0.5
pagetide_gpu_memory_used_bytes{gpu="0",model_name="m"} 40
pagetide_gpu_memory_total_bytes{gpu="0",model_name="m"} 80
python_info{version="3"} 1
"""

SUMMARY = {
    "time": 100.0,
    "services": [
        {
            "key": "ns/a",
            "model": "a",
            "held": 2,
            "replicas": [
                {"name": "a-0", "state": "ready", "reason": "", "inFlight": 3, "running": 2.0, "waiting": 1.0,
                 "maxRunning": 4.0, "kvUsedRatio": 0.5, "generatedTokens": 100.0, "queryTokens": 10.0,
                 "hitTokens": 0.0},
                {"name": "a-1", "state": "unready", "reason": "loading", "inFlight": 0},
            ],
        },
        {"key": "ns/asleep", "model": "asleep", "held": 0, "replicas": []},
    ],
}  # fmt: skip


def later(**values):
    """BEGIN with other values of metrics, by the beginning of their lines."""
    text = BEGIN
    for name, value in values.items():
        text, count = re.subn(rf"^(pagetide_{name}\S*) \S+$", rf"\1 {value}", text, flags=re.MULTILINE)
        assert count
    return text
