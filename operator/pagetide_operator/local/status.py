"""What is reported about local services: conditions, the JSON of `/status`, and the rows of the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pagetide_spec.crd import printer_columns
from pagetide_spec.inference_service import Autoscaling

from ..verdicts.failures import Failure
from ..verdicts.status import ASLEEP, readiness
from .service import LocalService

PATH_STATUS = "/status"

State = Literal["starting", "ready", "draining", "waiting", "broken"]

_FINE = ("ready", "draining")

# As `kubectl get` shows services.
SCALING_COLUMNS = ("Running", "Waiting", "Asked", "Last change")
COLUMNS = ("Name", *(column["name"] for column in printer_columns()))


@dataclasses.dataclass(frozen=True)
class ReplicaStatus:
    """One replica now. `message` says what it waits for or why it ended last; `leaves`: it drains and still answers,
    so that a request may keep it."""

    name: str
    state: State
    message: str = ""
    url: str = ""
    pid: int | None = None
    restarts: int = 0
    log: str = ""
    leaves: bool = False


def ready_condition(
    desired: int, replicas: Sequence[ReplicaStatus], scaling: Autoscaling | None = None
) -> dict[str, str]:
    """The Ready condition, by the operator's rule; while replicas start, its message is what they last said."""
    ready, late = _count_ready(replicas), [r for r in replicas if r.state not in _FINE]
    enough = max(1, min(desired, scaling.min_replicas)) if scaling else desired
    verdict = readiness(ready, desired, enough, _failure(late))
    if scaling and not desired:
        verdict = ASLEEP
    message = (_messages(late) if verdict.reason == "Starting" else "") or verdict.message
    return {"type": "Ready", "status": str(verdict.holds), "reason": verdict.reason, "message": message}


def _count_ready(replicas: Sequence[ReplicaStatus]) -> int:
    """Those that answer; as in a cluster also one that drains, until it is told to end: Ready does not flip for it."""
    return sum(r.state == "ready" or r.leaves for r in replicas)


def _failure(late: Sequence[ReplicaStatus]) -> Failure | None:
    """What is the matter with those that do not serve; one that starts again has failed before."""
    for reason, failed in (
        ("WrongSetting", [r for r in late if r.state == "broken"]),
        ("CrashLoopBackOff", [r for r in late if r.state == "waiting"] or [r for r in late if r.restarts]),
    ):
        if failed:
            return Failure(reason, _messages(failed))
    return None


def _messages(replicas: Sequence[ReplicaStatus]) -> str:
    """What each has to say; where several say the same, it is said once."""
    names: dict[str, list[str]] = {}
    for replica in replicas:
        names.setdefault(replica.message or replica.state, []).append(replica.name)
    return "; ".join(f"{', '.join(who)}: {message}" for message, who in names.items())


def describe(
    service: LocalService,
    replicas: Sequence[ReplicaStatus],
    desired: int,
    created: float,
    now: float,
    scaling: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One service in `/status`: the names of the resource's own status where it has them. Times are Unix seconds.

    `scaling` is what its autoscaler adds: conditions, and `autoscaling`.
    """
    more = dict(scaling or {})
    return {
        "name": service.name,
        "namespace": service.namespace,
        "model": service.model_name,
        "modelUri": service.uri,
        "ageSeconds": round(now - created, 1),
        "replicas": sum(r.pid is not None for r in replicas),
        "readyReplicas": _count_ready(replicas),
        "desiredReplicas": desired,
        "conditions": [ready_condition(desired, replicas, service.autoscaling), *more.pop("conditions", [])],
        **more,
        "pods": [dataclasses.asdict(r) for r in replicas],
    }


def is_ready(described: Mapping[str, Any]) -> bool:
    """Whether a described service has the condition Ready."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in described["conditions"])


def has_settled(described: Mapping[str, Any]) -> bool:
    """Whether all replicas of a described service are ready or have failed at least once."""
    pods = described["pods"]
    return len(pods) == described["desiredReplicas"] and all(
        p["state"] in ("ready", "broken", "waiting") or p["restarts"] for p in pods
    )


def is_hopeless(services: Sequence[Mapping[str, Any]]) -> bool:
    """Whether no described service can ever be ready."""
    return all(
        s["desiredReplicas"] > 0 and [p["state"] for p in s["pods"]] == ["broken"] * s["desiredReplicas"]
        for s in services
    )


def summary(services: Sequence[Mapping[str, Any]]) -> str:
    """One line on what is not ready yet."""
    late = [s for s in services if not is_ready(s)]
    return "; ".join(f"{s['name']} {s['readyReplicas']}/{s['desiredReplicas']}, {_message(s)}" for s in late)


def changes(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each described service that has turned Ready, or stopped being so, or was unknown before."""
    was = {s["name"]: is_ready(s) for s in before}
    return [
        f"{s['name']} is {'Ready' if is_ready(s) else 'not Ready'}: {_message(s)}"
        for s in now
        if is_ready(s) != was.get(s["name"])
    ]


def _message(described: Mapping[str, Any]) -> str:
    return str(described["conditions"][0]["message"])


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


def scaling_row(described: Mapping[str, Any]) -> tuple[str, ...]:
    """What a described service's autoscaler sees and did last, as SCALING_COLUMNS; empty cells where it has none."""
    scaling = described.get("autoscaling")
    if scaling is None:
        return ("", "", "", "")
    inputs = scaling["inputs"]
    asks = " ".join(f"{signal} {count}" for signal, count in inputs.get("asks", {}).items() if count)
    last = (scaling.get("decisions") or [None])[-1]
    change = f"{last['from']} -> {last['to']} by {last['winner']} at {last['time'][11:19]} UTC" if last else ""
    return (str(inputs.get("running", "-")), str(inputs.get("waiting", "-")), asks, change)


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
