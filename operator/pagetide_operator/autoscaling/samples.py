"""One scrape of one server: the figures that scaling is decided from. Pure."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping

from pagetide_spec.metrics import SERVER_METRICS

# (upper bound in seconds, requests at or below it), by rising bound; the last bound is infinite.
Buckets = tuple[tuple[float, float], ...]

_LE = re.compile(r'\ble="([^"]*)"')
_STATE = re.compile(r'\bstate="([^"]*)"')


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """What one server said at one time (seconds of the caller's clock).

    Attributes:
        running, waiting: sequences in the batch; requests before their first step, and sequences swapped out.
        oldest_waiting: age of the oldest waiting request in seconds.
        max_seqs: sequences that may run at once.
        batch_utilization: running over those the engine could run now.
        kv_capacity, kv_used, kv_cached: tokens of KV cache in all, in use, and kept for later prompts.
        prompt_tokens, query_tokens, hit_tokens, prefills: totals since the server's start.
        queue: time from arrival to the first step, totals since the server's start.
    """

    at: float
    running: float = 0.0
    waiting: float = 0.0
    oldest_waiting: float = 0.0
    max_seqs: float = 1.0
    batch_utilization: float = 0.0
    kv_capacity: float = 0.0
    kv_used: float = 0.0
    kv_cached: float = 0.0
    prompt_tokens: float = 0.0
    query_tokens: float = 0.0
    hit_tokens: float = 0.0
    prefills: float = 0.0
    queue: Buckets = ()


def parse_sample(text: str, at: float) -> Sample:
    """The figures in a server's `/metrics`; labels but `le` and `state` are summed over.

    Raises:
        ValueError: these are not the metrics of a server that has loaded its model.
    """
    values, queue = _read(text)
    total = sum(values.get(f"kv_blocks/{s}", 0.0) for s in ("free", "cached", "used"))
    capacity = values.get("kv_capacity_tokens", 0.0)
    if not values.get("max_num_seqs") or not capacity:
        raise ValueError("no max_num_seqs and kv_capacity_tokens among the metrics")
    block = capacity / total if total else 0.0
    return Sample(
        at=at,
        running=values.get("requests_running", 0.0),
        waiting=values.get("requests_waiting", 0.0) + values.get("requests_swapped", 0.0),
        oldest_waiting=values.get("oldest_waiting_seconds", 0.0),
        max_seqs=values["max_num_seqs"],
        batch_utilization=values.get("batch_utilization_ratio", 0.0),
        kv_capacity=capacity,
        kv_used=values.get("kv_blocks/used", 0.0) * block,
        kv_cached=values.get("kv_blocks/cached", 0.0) * block,
        prompt_tokens=values.get("prompt_tokens_total", 0.0),
        query_tokens=values.get("prefix_cache_query_tokens_total", 0.0),
        hit_tokens=values.get("prefix_cache_hit_tokens_total", 0.0),
        prefills=values.get("prefills_total", 0.0),
        queue=tuple(sorted(queue.items())),
    )


_GAUGES_AND_COUNTERS = (
    "requests_running",
    "requests_waiting",
    "requests_swapped",
    "oldest_waiting_seconds",
    "max_num_seqs",
    "batch_utilization_ratio",
    "kv_blocks",
    "kv_capacity_tokens",
    "prompt_tokens_total",
    "prefix_cache_query_tokens_total",
    "prefix_cache_hit_tokens_total",
    "prefills_total",
)
_SHORT: Mapping[str, str] = {SERVER_METRICS[name].full_name: name for name in _GAUGES_AND_COUNTERS}
_QUEUE = SERVER_METRICS["request_queue_seconds"].full_name + "_bucket"


def _read(text: str) -> tuple[dict[str, float], dict[float, float]]:
    """Values by short name (`kv_blocks` by `kv_blocks/STATE`), and the queue's buckets by upper bound.

    Reads the few lines that it needs: the general parser takes ten times as long, for each pod every few seconds.
    """
    values: dict[str, float] = {}
    queue: dict[float, float] = {}
    for line in text.splitlines():
        name, labels, rest = _split(line)
        if name == _QUEUE:
            bound = _LE.search(labels)
            if bound:
                key = math.inf if bound[1] == "+Inf" else float(bound[1])
                queue[key] = queue.get(key, 0.0) + _value(rest)
        elif name in _SHORT:
            state = _STATE.search(labels)
            short = f"{_SHORT[name]}/{state[1]}" if state else _SHORT[name]
            values[short] = values.get(short, 0.0) + _value(rest)
    return values, queue


def _split(line: str) -> tuple[str, str, str]:
    """(name, labels, what follows) of a line in Prometheus' text format."""
    head, brace, tail = line.partition("{")
    if not brace:
        name, _, rest = line.partition(" ")
        return name, "", rest
    labels, _, rest = tail.rpartition("}")
    return head, labels, rest


def _value(rest: str) -> float:
    """The number of a line; a time of measurement may follow it."""
    words = rest.split(maxsplit=1)
    if not words:
        raise ValueError("a line without a number among the metrics")
    number = float(words[0])
    if not math.isfinite(number):
        raise ValueError(f"{number} among the metrics")
    return number
