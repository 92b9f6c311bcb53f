"""What a status says of the InferencePool that a service asks for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pagetide_spec.inference_service import InferenceService

from ..cluster.kinds import POOL
from ..plan import is_owned
from .failures import Failure
from .status import POOL_CONDITION, Verdict

Object = Mapping[str, Any]

NO_EXTENSION = Failure(
    "ExtensionNotInstalled",
    f"this cluster has no {POOL.name} ({POOL.versions[0]}): install Gateway API Inference Extension; "
    "the service serves without a pool",
)


def pool_verdict(service: InferenceService, children: Iterable[Object], trouble: Failure | None) -> Verdict | None:
    """The condition of the pool, or None where none is asked for. `trouble`: what kept it from being applied.

    Whether a Gateway takes the pool, and finds the endpoint picker, is in the pool's own status.
    """
    picker = service.endpoint_picker
    if picker is None:
        return None
    if trouble is not None:
        return Verdict(POOL_CONDITION, False, trouble.reason, trouble.message)
    if any(c["kind"] == POOL.name and is_owned(c, service.uid) for c in children):
        offered = f"InferencePool {service.name} offers the pods to {picker.name}:{picker.port}"
        return Verdict(POOL_CONDITION, True, "Applied", offered)
    return Verdict(POOL_CONDITION, False, "Pending", "the InferencePool is not made yet")
