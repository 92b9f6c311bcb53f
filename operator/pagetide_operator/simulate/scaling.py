"""`pagetide simulate FILE`: one trace under several controllers, and how well each did."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from pagetide_spec.inference_service import Autoscaling, InferenceService
from pagetide_spec.traces import Row

from .controllers import ConcurrencyKpa, Controller, Fixed, Pagetide, QueueHpa
from .replay import Played, Replay
from .routing import quantile
from .server import ServerModel

# Copies of a trace's requests lie so close behind them that the load keeps its shape.
COPIES_WITHIN_S = 10.0
STEADY_S = 300.0


@dataclasses.dataclass(frozen=True)
class Goals:
    """What counts as well served: seconds to the first token, mean seconds between two tokens of an answer."""

    ttft_s: float = 2.0
    inter_token_s: float = 0.1


@dataclasses.dataclass(frozen=True)
class Rivals:
    """Settings of the controllers compared with: waiting requests a pod, open requests a pod, fixed fleets."""

    hpa_waiting: float = 5.0
    kpa_open: float | None = None
    fixed: tuple[int, ...] = ()


def loaded(rows: Sequence[Row], load: int) -> list[Row]:
    """A trace with each request `load` times; the copies come a little later, the same in every run."""
    chance = random.Random(0)
    copies = [
        dataclasses.replace(row, at=row.at + (chance.uniform(0, COPIES_WITHIN_S) if number else 0.0))
        for number in range(load)
        for row in rows
    ]
    return sorted(copies, key=lambda row: row.at)


def compare_scaling(
    rows: Sequence[Row],
    service: InferenceService,
    model: ServerModel,
    goals: Goals,
    rivals: Rivals,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, Any], list[Played]]:
    """Replay a trace under every controller: figures by its name, and what was played."""
    scaling = service.autoscaling
    if scaling is None:
        raise ValueError("the service has no spec.autoscaling")
    begin = min(max(1, scaling.min_replicas), scaling.max_replicas)
    out: list[Played] = []
    for make in _controllers(scaling, service.drain_seconds, model, rivals, out):
        controller = make()
        tell(controller.name)
        replicas = controller.replicas if isinstance(controller, Fixed) else begin
        out.append(Replay(rows, model, controller, replicas).run())
    return {played.controller.name: figures(played, goals) for played in out}, out


def _controllers(
    scaling: Autoscaling, drain_s: float, model: ServerModel, rivals: Rivals, played: list[Played]
) -> list[Callable[[], Controller]]:
    """Pagetide first; fixed fleets of its mean and its greatest number, unless others were asked for."""
    open_requests = rivals.kpa_open or model.max_seqs * scaling.batch_utilization

    def mean() -> Controller:
        return Fixed(max(1, math.ceil(played[0].replica_seconds / max(1.0, played[0].seconds))))

    def most() -> Controller:
        return Fixed(max(desired for _, desired, _, _ in played[0].timeline))

    fixed: list[Callable[[], Controller]] = [lambda n=n: Fixed(n) for n in rivals.fixed]  # type: ignore[misc]
    return [
        lambda: Pagetide(scaling, drain_s),
        lambda: QueueHpa(scaling, rivals.hpa_waiting),
        lambda: ConcurrencyKpa(scaling, open_requests),
        *(fixed or [mean, most]),
    ]


def figures(played: Played, goals: Goals) -> dict[str, Any]:
    """How well the requests were served, at what cost."""
    ttft = [job.first - job.arrived for job in played.jobs]
    gaps = [(j.ended - j.first) / (j.row.output_tokens - 1) for j in played.jobs if j.row.output_tokens > 1]
    changes = [(d["time"], d["to"] - d["from"]) for d in played.controller.decisions]
    turns = turning_times(changes)
    return {
        "requests": len(ttft),
        "ttft_attainment": share_within(ttft, goals.ttft_s),
        "ttft_p50_s": quantile(ttft, 0.5),
        "ttft_p95_s": quantile(ttft, 0.95),
        "inter_token_attainment": share_within(gaps, goals.inter_token_s),
        "inter_token_p95_s": quantile(gaps, 0.95) if gaps else 0.0,
        "replica_hours": played.replica_seconds / 3600,
        "most_replicas": max(desired for _, desired, _, _ in played.timeline),
        "hit_ratio": played.hit_tokens / played.query_tokens if played.query_tokens else 0.0,
        "changes": len(changes),
        "most_turns_in_5_min": max((sum(t <= x < t + STEADY_S for x in turns) for t in turns), default=0),
        "decisions": played.controller.decisions,
    }


def share_within(values: Sequence[float], most: float) -> float:
    """The share of values that do not exceed `most`; 1 where there are none."""
    return sum(value <= most for value in values) / len(values) if values else 1.0


def turning_times(changes: Sequence[tuple[float, int]]) -> list[float]:
    """When a change went the other way than the one before it."""
    out, last = [], 0
    for at, by in changes:
        if last and (by > 0) != (last > 0):
            out.append(at)
        last = by
    return out
