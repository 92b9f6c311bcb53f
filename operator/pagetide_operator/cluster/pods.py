"""What a Pod says of itself: whether it answers, whether it will, and where. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagetide_spec.names import SERVER_PORT

Object = Mapping[str, Any]


def is_ready(pod: Object) -> bool:
    """Whether a pod answers requests."""
    conditions = pod.get("status", {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def is_alive(pod: Object) -> bool:
    """Whether a pod runs or will; evicted and finished ones stay as objects for a while."""
    is_over = pod.get("status", {}).get("phase") in ("Failed", "Succeeded")
    return "deletionTimestamp" not in pod["metadata"] and not is_over


def address_of(pod: Object) -> str | None:
    """Where a pod's server listens, or None while it has no address."""
    address = pod.get("status", {}).get("podIP")
    if not address:
        return None
    return f"http://[{address}]:{SERVER_PORT}" if ":" in address else f"http://{address}:{SERVER_PORT}"
