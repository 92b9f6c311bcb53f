"""Reads what replicas say about themselves: for the router, and as a sign that they work."""

from __future__ import annotations

import logging
import math
import re
import time

import aiohttp

from pagetide_spec.metrics import SERVER_METRICS, VLLM_METRICS
from pagetide_spec.names import PATH_METRICS
from pagetide_spec.web import MOST_ANSWER_BYTES, whole_body

from ..metrics import GatewayMetrics
from ..replicas.registry import Registry, Replica, Service
from ..routing.outlier import after_failure
from ..routing.replica_load import Figures
from .for_each import for_each_replica

log = logging.getLogger(__name__)

INTERVAL_S = 2.0
TIMEOUT_S = 2.0
# A replica that says it is at work may take longer for one step, and its liveness ends it if it is stuck. Where nothing
# but the answers tells that a replica works, an answer that is no stream may take longer still.
_BUSY_FACTOR = 3
_BLIND_FACTOR = 10

_WANTED = {
    "prefix_cache_query_tokens_total": "query_tokens",
    "prefix_cache_hit_tokens_total": "hit_tokens",
    "kv_capacity_tokens": "capacity_tokens",
    "requests_running": "running",
    "requests_waiting": "waiting",
    "max_num_seqs": "max_running",
    "generation_tokens_total": "generated_tokens",
    "kv_cache_utilization_ratio": "kv_used_ratio",
}
# Either moves while a replica works.
_WORK = ("engine_steps_total", "prompt_tokens_total", "generation_tokens_total")
_NAMES = {SERVER_METRICS[name].full_name: name for name in (*_WANTED, *_WORK)}
_NAMES |= {theirs: ours for theirs, (ours, _) in VLLM_METRICS.items() if ours in {*_WANTED, *_WORK}}
_LINE = re.compile(rf"^({'|'.join(map(re.escape, _NAMES))})(?:\{{[^\n]*\}})? (\S+)", re.MULTILINE)


def parse(text: str) -> tuple[Figures, float | None]:
    """The figures of an exposition text, and a number that grows with the replica's work (None: it has no such)."""
    sums: dict[str, float] = {}
    for full_name, value in _LINE.findall(text):
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isfinite(number):  # several engines of one server have a line each
            sums[full_name] = sums.get(full_name, 0.0) + number
    found = {_NAMES[full_name]: number for full_name, number in sums.items()}
    work = [found[name] for name in _WORK if name in found]
    return Figures(**{field: found.get(name) for name, field in _WANTED.items()}), sum(work) if work else None


def stall_limit(replica: Replica, stall_s: float) -> float:
    """How long a replica with requests may give no sign of work."""
    if replica.has_counters:
        return stall_s * _BUSY_FACTOR if replica.says_busy else stall_s
    return stall_s if replica.streams else stall_s * _BLIND_FACTOR


class FigureReader:
    """Reads every ready replica's `/metrics` until cancelled, and gives up on those that have work and do nothing."""

    def __init__(
        self, registry: Registry, session: aiohttp.ClientSession, metrics: GatewayMetrics, stall_s: float
    ) -> None:
        self._registry, self._session, self._metrics, self._stall_s = registry, session, metrics, stall_s
        self._timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)

    async def run(self) -> None:
        """Until cancelled."""
        await for_each_replica(self._registry, self._once, 0.1)

    async def _once(self, service: Service, replica: Replica) -> float:
        if replica.health.ready:
            await self._read(service, replica)
        self._judge(service, replica)
        return min(INTERVAL_S, self._stall_s / 4)

    async def _read(self, service: Service, replica: Replica) -> None:
        try:
            async with self._session.get(
                replica.url + PATH_METRICS, timeout=self._timeout, allow_redirects=False
            ) as response:
                pieces, is_good = response.content.iter_any(), response.status == 200
                body = await whole_body(pieces, MOST_ANSWER_BYTES) if is_good else b""
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return  # whether it is well is for the health polls to say
        now = time.monotonic()
        figures, work = parse(body.decode("utf-8", "replace"))
        if service.replicas.get(replica.name) is replica:  # not gone, its name perhaps another's
            service.router.observe(replica.name, figures, now)
        replica.figures = figures
        replica.has_counters = work is not None
        replica.says_busy = bool(figures.running or figures.waiting)
        if work is not None and work != replica.work:
            replica.work, replica.heard = work, now

    def _judge(self, service: Service, replica: Replica) -> None:
        now, limit = time.monotonic(), stall_limit(replica, self._stall_s)
        if replica.in_flight <= replica.blocked or now - replica.heard < limit:
            return
        why = f"no sign of work for {now - replica.heard:.0f} s"
        log.warning("%s: %s is given up: %s", service.model, replica.name, why)
        replica.heard = now
        replica.standing = after_failure(replica.standing, now, is_stall=True)
        self._metrics.ejected(service.model)
        replica.lose(why)
