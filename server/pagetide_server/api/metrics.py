"""The server's metrics: plain numbers, filled by the request path and the engine's reports, read at a scrape.

Names, kinds and help texts come from `pagetide_spec.metrics`. Tokens are counted as they are handed to clients.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from pagetide_spec.metrics import FINISH_REASONS, SERVER_METRICS, VLLM_METRICS, Metric

from ..wire.messages import EngineStats, Ready, StepOutput
from .gpu import Gpus
from .histogram import Histogram

Labels = tuple[str, ...]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RECENT_SECONDS = 10.0
HIT_RATIO_SECONDS = 60.0


class ServerMetrics(Collector):
    """All metrics of one server. Used from its event loop only.

    Attributes:
        stats: the engine's newest report.
        ready: what the engine said of itself, once it has.
    """

    def __init__(self, model_name: str, version: str, vllm: bool = False) -> None:
        self._model_name, self._version, self._vllm = model_name, version, vllm
        self.stats = EngineStats()
        self.ready: Ready | None = None
        self._values: dict[str, dict[Labels, float]] = {n: {} for n, m in SERVER_METRICS.items() if not m.buckets}
        self._histograms = {name: Histogram(m.buckets) for name, m in SERVER_METRICS.items() if m.buckets}
        for reason in FINISH_REASONS:
            self._values["requests_total"][(reason,)] = 0.0
        self._totals = self._values["generation_tokens_total"], self._values["decodes_total"]
        for name in ("generation_tokens_total", "decodes_total", "prompt_tokens_total", "prefills_total"):
            self._values[name][()] = 0.0
        self._inter_token = self._histograms["inter_token_seconds"]
        self._steps: deque[tuple[float, int]] = deque()
        self._queued = 0.0
        self._gpus = Gpus()
        self._cache: deque[tuple[float, int, int]] = deque([(time.monotonic(), 0, 0)])
        self._registry = CollectorRegistry()
        self._registry.register(self)

    # ---- what happened

    def step(self, output: StepOutput) -> None:
        """A report of the engine: a step, or a change between steps."""
        self.stats = output.stats
        if output.time - self._cache[-1][0] >= 1.0:
            self._remember_hits(output.time)
        if not output.sequences:
            return
        self._steps.append((output.time, output.tokens))
        while self._steps[0][0] < output.time - RECENT_SECONDS:
            self._steps.popleft()
        self._histograms["engine_step_seconds"].observe(output.seconds)
        self._histograms["engine_step_tokens"].observe(output.tokens)
        self._histograms["engine_step_sequences"].observe(output.sequences)

    def prefilled(self, prompt_tokens: int, queue_seconds: float) -> None:
        """A request's prompt was finished."""
        self._add("prompt_tokens_total", prompt_tokens)
        self._add("prefills_total", 1)
        self._queued = max(0.0, queue_seconds)
        self._histograms["request_queue_seconds"].observe(self._queued)

    def first_token(self, seconds: float) -> None:
        """The first token of a request came `seconds` after the request."""
        self._histograms["time_to_first_token_seconds"].observe(seconds)

    def tokens(self, count: int, decodes: int, seconds: float) -> None:
        """`count` tokens of one sequence, `decodes` of them not its first, came `seconds` after the ones before."""
        generated, decoded = self._totals
        generated[()] += count
        if decodes:
            decoded[()] += decodes
            self._inter_token.observe(seconds / decodes, decodes)

    def answered(self, prefill_seconds: float, decode_seconds: float) -> None:
        """A request that has had a token ended: the time up to its first one, and from there."""
        self._histograms["request_prefill_seconds"].observe(max(0.0, prefill_seconds))
        self._histograms["request_decode_seconds"].observe(max(0.0, decode_seconds))

    def finished(self, reason: str, prompt_tokens: int, generated: int, seconds: float) -> None:
        """A request ended, in whatever way."""
        self._add("requests_total", 1, (reason,))
        self._histograms["request_seconds"].observe(seconds)
        self._histograms["request_prompt_tokens"].observe(prompt_tokens)
        self._histograms["request_generation_tokens"].observe(generated)

    def http(self, route: str, code: int) -> None:
        """An HTTP request was answered."""
        self._add("http_requests_total", 1, (route, str(code)))

    # ---- reading

    def expected_wait(self, now: float) -> float:
        """Seconds that a request may wait for its first step: as long as the newest did, or the oldest already does."""
        oldest = self.stats.oldest_arrival
        return self._queued if oldest is None else max(self._queued, now - oldest)

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        self._read_engine(time.monotonic())
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Family]:
        """The families, as the registry asks for them."""
        for metric in SERVER_METRICS.values():
            yield self._family(metric.full_name, metric, metric.labels, {"model_name": self._model_name})
        if self._vllm:
            for name, (ours, labels) in VLLM_METRICS.items():
                metric = SERVER_METRICS[ours]
                renamed = tuple(labels.get(label, label) for label in metric.labels)
                yield self._family(name, metric, renamed, {"model_name": self._model_name, "engine": "0"})

    def describe(self) -> list[Family]:
        """Nothing: the registry need not look for clashes."""
        return []

    def _family(self, name: str, metric: Metric, labels: Labels, common: dict[str, str]) -> Family:
        names = [*common, *(label for label in labels if label)]
        if metric.kind == "histogram":
            histogram = HistogramMetricFamily(name, metric.help, labels=names)
            source = self._histograms[metric.name]
            histogram.add_metric([*common.values()], source.buckets(), source.total)
            return histogram
        family = (GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily)(name, metric.help, labels=names)
        kept = [i for i, label in enumerate(labels) if label]
        rows: dict[Labels, float] = {}
        for key, value in self._values[metric.name].items():
            short = tuple(key[i] for i in kept)
            rows[short] = rows.get(short, 0.0) + value
        for key, value in rows.items():
            family.add_metric([*common.values(), *key], value)
        return family

    def _add(self, name: str, amount: float, labels: Labels = ()) -> None:
        values = self._values[name]
        values[labels] = values.get(labels, 0.0) + amount

    def _set(self, name: str, value: float, labels: Labels = ()) -> None:
        self._values[name][labels] = float(value)

    def _remember_hits(self, now: float) -> None:
        self._cache.append((now, self.stats.prefix_query_tokens, self.stats.prefix_hit_tokens))
        # The oldest entry kept lies just outside the window: it is what the window's numbers are counted from.
        while len(self._cache) > 1 and self._cache[1][0] < now - HIT_RATIO_SECONDS:
            self._cache.popleft()

    def _read_engine(self, now: float) -> None:
        stats = self.stats
        total = stats.blocks_free + stats.blocks_cached + stats.blocks_used
        oldest = stats.oldest_arrival
        self._set("requests_running", stats.running)
        self._set("requests_waiting", stats.waiting)
        self._set("requests_swapped", stats.swapped)
        self._set("oldest_waiting_seconds", max(0.0, now - oldest) if oldest is not None else 0.0)
        self._set("kv_cache_utilization_ratio", stats.blocks_used / total if total else 0.0)
        for state in ("free", "cached", "used", "swapped"):
            self._set("kv_blocks", getattr(stats, f"blocks_{state}"), (state,))
        self._set("batch_utilization_ratio", stats.running / max(stats.admissible_seqs, stats.running, 1))
        self._read_totals(stats)
        self._read_recent(now)
        if self.ready is not None:
            self._read_ready(self.ready)

    def _read_totals(self, stats: EngineStats) -> None:
        self._set("prefix_cache_query_tokens_total", stats.prefix_query_tokens)
        self._set("prefix_cache_hit_tokens_total", stats.prefix_hit_tokens)
        self._set("prefix_tail_tokens_total", stats.prefix_tail_tokens)
        for size, tokens in stats.prefix_shareable_tokens.items():
            self._set("prefix_shareable_tokens_total", tokens, (str(size),))
        self._set("engine_steps_total", stats.steps)
        self._set("preemptions_total", stats.preemptions_swap, ("swap",))
        self._set("preemptions_total", stats.preemptions_recompute, ("recompute",))
        self._set("swapped_blocks_total", stats.swapped_out_blocks, ("out",))
        self._set("swapped_blocks_total", stats.swapped_in_blocks, ("in",))
        self._set("kv_block_allocations_total", stats.block_allocations)
        self._set("kv_block_allocation_failures_total", stats.block_allocation_failures)

    def _read_recent(self, now: float) -> None:
        budget = self.ready.max_num_batched_tokens if self.ready else 0
        recent = [tokens for at, tokens in self._steps if at > now - RECENT_SECONDS]
        self._set("batch_token_utilization_ratio", sum(recent) / (len(recent) * budget) if recent and budget else 0.0)
        self._remember_hits(now)
        _, queries, hits = self._cache[0]
        asked = self.stats.prefix_query_tokens - queries
        self._set("prefix_cache_hit_ratio", (self.stats.prefix_hit_tokens - hits) / asked if asked else 0.0)

    def _read_ready(self, ready: Ready) -> None:
        self._set("max_num_seqs", ready.max_num_seqs)
        self._set("kv_capacity_tokens", ready.num_blocks * ready.block_size)
        if ready.device_type == "cuda":
            self._read_gpus()
        computed = (ready.dtype, str(ready.block_size), ready.device, ready.attention, ready.kv_cache_dtype)
        self._set("engine_info", 1, (self._version, *computed, str(ready.num_blocks)))

    def _read_gpus(self) -> None:
        names = {"gpu_utilization_ratio": "busy", "gpu_memory_used_bytes": "used", "gpu_memory_total_bytes": "total"}
        found = self._gpus.read()
        for name, field in names.items():
            told = {(gpu.index,): getattr(gpu, field) for gpu in found}
            self._values[name] = {labels: value for labels, value in told.items() if value is not None}
