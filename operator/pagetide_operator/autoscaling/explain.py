"""Decisions in words and as data: for status, conditions, Events and logs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..cluster.times import seconds_of, timestamp
from .behavior import Change
from .policy import Decision
from .signals import queue_p95

MOST_DECISIONS = 5

LIMITS: Mapping[str, str] = {
    "MaxReplicas": "the load asks for more than maxReplicas",
    "MinReplicas": "the load asks for fewer than minReplicas",
    "StabilizationWindow": "what was asked for within the stabilization window differs",
    "ScalingPolicy": "behavior's policies allow no faster change",
    "ScaleUpDisabled": "behavior.scaleUp.selectPolicy is Disabled",
    "ScaleDownDisabled": "behavior.scaleDown.selectPolicy is Disabled",
    "CacheGuard": "one replica fewer would not hold the requests and the cached blocks in use; it waits ten minutes",
    "OneAtATime": "one replica leaves at a time",
}


def inputs_of(decision: Decision) -> dict[str, Any]:
    """What was measured and what each signal asked for, by camelCase name; numbers rounded for reading."""
    seen = decision.seen
    if not seen.loads:
        return {"starting": seen.starting, "missing": seen.missing}
    out: dict[str, Any] = {
        "ready": len(seen.loads),
        "starting": seen.starting,
        "missing": seen.missing,
        "running": round(seen.running),
        "waiting": round(seen.waiting),
        "placesPerReplica": round(seen.capacity),
        "queueP95Seconds": round(queue_p95(seen), 3),
        "kvUsedTokens": round(seen.kv_used),
        "kvTokensPerReplica": round(seen.kv_capacity),
        "hitRatio": round(seen.hit_ratio, 3),
        "uncachedTokensPerSecond": round(seen.demand),
    }
    if seen.rate:
        out["fullReplicaTokensPerSecond"] = round(seen.rate)
    return {**out, "asks": {ask.signal: ask.replicas for ask in decision.asks}}


def entry_of(decision: Decision, desired: int, now: float) -> dict[str, Any]:
    """One entry of `status.autoscaling.decisions`."""
    return {
        "time": timestamp(now),
        "from": decision.current,
        "to": desired,
        "winner": decision.winner,
        # Not empty: Kubernetes 1.20 takes an empty text in a list for null, and refuses it.
        "limiter": decision.limiter or "none",
        "inputs": inputs_of(decision),
    }


def status_after(before: Mapping[str, Any], decision: Decision, desired: int, now: float) -> dict[str, Any]:
    """`status.autoscaling` with one more change."""
    entries = [*(before.get("decisions") or []), entry_of(decision, desired, now)]
    return {"lastScaleTime": timestamp(now), "decisions": entries[-MOST_DECISIONS:]}


def changes_in(status: Mapping[str, Any]) -> list[Change]:
    """The changes that `status.autoscaling` has, oldest first; what is no decision is passed over."""
    out = []
    for entry in status.get("decisions") or []:
        try:
            out.append(Change(seconds_of(entry["time"]), int(entry["from"]), int(entry["to"])))
        except (LookupError, TypeError, ValueError):
            continue
    return out


def sentence(decision: Decision, desired: int) -> str:
    """One line: from, to, why, and what limits it."""
    asked = ", ".join(f"{a.signal} {a.replicas}" for a in decision.asks)
    head = f"{decision.current} -> {desired} replicas: {_why(decision)}"
    limit = LIMITS.get(decision.limiter)
    return head + (f" (asked: {asked})" if asked else "") + (f"; {limit}" if limit else "")


def _why(decision: Decision) -> str:
    seen, name = decision.seen, decision.winner
    reasons = {
        "batch": f"{seen.running:.0f} running and {seen.waiting:.0f} waiting, "
        f"{seen.capacity:.0f} batch slots per replica",
        "queue": f"requests wait {queue_p95(seen):.2f} s for a batch slot (95th percentile or oldest)",
        "memory": f"{seen.kv_used:.0f} tokens of KV cache in use, {seen.kv_capacity:.0f} per replica",
        "prompt": f"{seen.demand:.0f} uncached prompt tokens/s, {seen.rate or 0:.0f} for a full replica",
        "idle": "no request for idleSeconds",
        "wake": "a gateway holds a request",
    }
    return reasons.get(name, "no load was measured")


def active_condition(decision: Decision) -> tuple[bool, str, str]:
    """(holds, reason, message) of ScalingActive; the message has no figure that changes from scrape to scrape."""
    if decision.is_measured:
        if not decision.replicas:
            return True, "Asleep", "at zero until a gateway holds a request"
        return True, "Measured", "the load decides how many replicas there are"
    if decision.seen.missing:
        return False, "NoMetrics", "no ready replica can be scraped; nothing changes until one can"
    return False, "Starting", "no replica is ready yet; nothing changes until one is"


def limited_condition(decision: Decision) -> tuple[bool, str, str]:
    """(holds, reason, message) of ScalingLimited."""
    message = LIMITS.get(decision.limiter)
    if message is None:
        return False, "DesiredWithinRange", "nothing limits what the load asks for"
    return True, decision.limiter, message
