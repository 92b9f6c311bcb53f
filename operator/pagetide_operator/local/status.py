"""What is told about local services: conditions, the JSON of `/status`, and the rows of the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from .service import LocalService

PATH_STATUS = "/status"

State = Literal["starting", "ready", "draining", "waiting", "broken"]

# The printer columns of the CustomResourceDefinition behind the name, as `kubectl get` shows them.
COLUMNS = ("Name", "Model", "Ready", "Replicas", "Desired", "Reason", "Age")


@dataclasses.dataclass(frozen=True)
class ReplicaStatus:
    """One replica now. `message` says what it waits for or why it ended last."""

    name: str
    state: State
    message: str = ""
    url: str = ""
    pid: int | None = None
    restarts: int = 0
    log: str = ""


def ready_condition(desired: int, replicas: Sequence[ReplicaStatus]) -> dict[str, str]:
    """The Ready condition, by the operator's rule: all replicas serve and none fails."""
    ready = sum(r.state == "ready" for r in replicas)
    serve = f"{ready} of {desired} replicas serve"
    if not desired:
        return _condition("False", "ScaledToZero", "replicas is 0")
    for state, reason in (("broken", "WrongSetting"), ("waiting", "CrashLoopBackOff")):
        if failed := [r for r in replicas if r.state == state]:
            return _condition("False", reason, _messages(failed) + (f"; {serve}" if ready else ""))
    if ready >= desired:
        return _condition("True", "Ready", serve)
    late = [r for r in replicas if r.state != "ready"]
    again = any(r.restarts for r in late)
    return _condition("False", "CrashLoopBackOff" if again else "Starting", _messages(late) or serve)


def _condition(status: str, reason: str, message: str) -> dict[str, str]:
    return {"type": "Ready", "status": status, "reason": reason, "message": message}


def _messages(replicas: Sequence[ReplicaStatus]) -> str:
    return "; ".join(f"{r.name}: {r.message or r.state}" for r in replicas)


def describe(service: LocalService, replicas: Sequence[ReplicaStatus], created: float, now: float) -> dict[str, Any]:
    """One service in `/status`: the names of the resource's own status where it has them. Times are Unix seconds."""
    return {
        "name": service.name,
        "namespace": service.namespace,
        "model": service.model_name,
        "modelUri": service.uri,
        "ageSeconds": round(now - created, 1),
        "replicas": sum(r.pid is not None for r in replicas),
        "readyReplicas": sum(r.state == "ready" for r in replicas),
        "desiredReplicas": service.replicas,
        "conditions": [ready_condition(service.replicas, replicas)],
        "pods": [dataclasses.asdict(r) for r in replicas],
    }


def is_ready(described: Mapping[str, Any]) -> bool:
    """Whether a described service has the condition Ready."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in described["conditions"])


def row(described: Mapping[str, Any]) -> tuple[str, ...]:
    """A described service as COLUMNS."""
    ready = described["conditions"][0]
    return (
        described["name"],
        described["modelUri"],
        ready["status"],
        str(described["readyReplicas"]),
        str(described["desiredReplicas"]),
        ready["reason"],
        age(described["ageSeconds"]),
    )


def age(seconds: float) -> str:
    """Like kubectl: `45s`, `5m3s`, `12m`, `3h20m`, `2d4h`."""
    total = int(seconds)
    if total < 120:
        return f"{total}s"
    minutes, rest = divmod(total, 60)
    if minutes < 10:
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours, rest = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{rest}m" if rest and hours < 8 else f"{hours}h"
    days, rest = divmod(hours, 24)
    return f"{days}d{rest}h" if rest and days < 8 else f"{days}d"
